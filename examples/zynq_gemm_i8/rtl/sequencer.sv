// A whole run: where the operands are in memory, A, B and, if it is added to, C are fetched, and C is written back
// after the core is done. Where they are in the buffers already, the run is the core's alone.
module sequencer (
    input  logic        clk,
    input  logic        rst_n,
    input  logic        start,
    input  logic        from_memory,
    input  logic        accumulate,
    input  logic [9:0]  m,
    input  logic [9:0]  n,
    input  logic [9:0]  k,
    input  logic [31:0] a_address,
    input  logic [31:0] b_address,
    input  logic [31:0] c_address,
    output logic        busy,
    output logic [31:0] cycles,      // of the latest run
    output logic        core_start,
    input  logic        core_busy,
    output logic        dma_start,
    output logic        dma_to_memory,
    output logic [31:0] dma_address,
    output logic [10:0] dma_words,
    output logic [1:0]  dma_buffer,  // 1: A, 2: B, 3: C
    input  logic        dma_busy
);
    typedef enum logic [2:0] {IDLE, FETCH_A, FETCH_B, FETCH_C, COMPUTE, STORE_C} phase_t;
    phase_t phase;
    logic   is_new;  // the phase's work was not started yet

    wire done = !is_new && !dma_start && !core_start && !dma_busy && !core_busy;

    // Words, as there are four bytes of A and B in one; all products fit: the core's buffers hold no more.
    wire [19:0] a_bytes = 20'(m) * 20'(k);
    wire [19:0] b_bytes = 20'(k) * 20'(n);
    wire [19:0] c_words = 20'(m) * 20'(n);
    wire        unused  = &{1'b0, a_bytes[19:13], a_bytes[1:0], b_bytes[19:13], b_bytes[1:0], c_words[19:11]};

    assign busy = phase != IDLE || core_start || core_busy;

    always_ff @(posedge clk) begin
        core_start <= 1'b0;
        dma_start  <= 1'b0;
        if (!rst_n) begin
            phase  <= IDLE;
            is_new <= 1'b0;
            cycles <= '0;
        end else begin
            if (phase == IDLE && start) cycles <= '0;
            else if (phase != IDLE || core_busy) cycles <= cycles + 32'd1;
            is_new <= 1'b0;
            unique case (phase)
                IDLE: if (start) begin
                    if (from_memory) begin
                        phase  <= FETCH_A;
                        is_new <= 1'b1;
                    end else begin
                        core_start <= 1'b1;
                    end
                end
                FETCH_A: if (done) begin
                    phase  <= FETCH_B;
                    is_new <= 1'b1;
                end
                FETCH_B: if (done) begin
                    phase  <= accumulate ? FETCH_C : COMPUTE;
                    is_new <= 1'b1;
                end
                FETCH_C: if (done) begin
                    phase  <= COMPUTE;
                    is_new <= 1'b1;
                end
                COMPUTE: if (done) begin
                    phase  <= STORE_C;
                    is_new <= 1'b1;
                end
                STORE_C: if (done) phase <= IDLE;
                default: phase <= IDLE;
            endcase
            if (is_new) begin
                core_start <= phase == COMPUTE;
                dma_start  <= phase != COMPUTE;
            end
        end
    end

    always_comb begin
        dma_to_memory = phase == STORE_C;
        unique case (phase)
            FETCH_A: {dma_buffer, dma_address, dma_words} = {2'd1, a_address, a_bytes[12:2]};
            FETCH_B: {dma_buffer, dma_address, dma_words} = {2'd2, b_address, b_bytes[12:2]};
            default: {dma_buffer, dma_address, dma_words} = {2'd3, c_address, c_words[10:0]};
        endcase
    end
endmodule
