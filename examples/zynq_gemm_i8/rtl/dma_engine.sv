// Moves words between memory and a block RAM, as an AXI4 master with bursts of up to 16 beats of 32 bits.
//
// `address` is a multiple of 64 bytes, so that no burst crosses a page of 4 KiB. Words out of the RAM take two cycles
// each. After an error from the bus it stays busy until it is reset: software sees that as a time-out.
module dma_engine (
    input  logic        clk,
    input  logic        rst_n,
    input  logic        start,
    input  logic        to_memory,
    input  logic [31:0] address,
    input  logic [10:0] words,     // at least 1
    output logic        busy,
    // The RAM: a read comes a cycle later
    output logic [9:0]  ram_addr,
    output logic        ram_write,
    output logic [31:0] ram_wdata,
    input  logic [31:0] ram_rdata,
    // AXI4
    output logic        m_arvalid,
    input  logic        m_arready,
    output logic [31:0] m_araddr,
    output logic [7:0]  m_arlen,
    input  logic        m_rvalid,
    output logic        m_rready,
    input  logic [31:0] m_rdata,
    input  logic [1:0]  m_rresp,
    output logic        m_awvalid,
    input  logic        m_awready,
    output logic [31:0] m_awaddr,
    output logic [7:0]  m_awlen,
    output logic        m_wvalid,
    input  logic        m_wready,
    output logic [31:0] m_wdata,
    output logic        m_wlast,
    input  logic        m_bvalid,
    output logic        m_bready,
    input  logic [1:0]  m_bresp
);
    localparam logic [10:0] BURST = 11'd16;

    typedef enum logic [2:0] {IDLE, ASK_READ, READ, ASK_WRITE, FETCH, WRITE, ANSWER, FAILED} phase_t;
    phase_t phase;

    logic [31:0] next_address;
    logic [10:0] words_left;   // of all, the burst under way included
    logic [4:0]  beats_left;   // of the burst
    logic [9:0]  index;        // word of the RAM

    wire [4:0] burst = words_left < BURST ? words_left[4:0] : BURST[4:0];

    assign busy      = phase != IDLE;
    assign ram_addr  = index;
    assign ram_write = phase == READ && m_rvalid;
    assign ram_wdata = m_rdata;
    assign m_arvalid = phase == ASK_READ;
    assign m_araddr  = next_address;
    assign m_arlen   = 8'(burst) - 8'd1;
    assign m_rready  = phase == READ;
    assign m_awvalid = phase == ASK_WRITE;
    assign m_awaddr  = next_address;
    assign m_awlen   = 8'(burst) - 8'd1;
    assign m_wvalid  = phase == WRITE;
    assign m_wdata   = ram_rdata;
    assign m_wlast   = beats_left == 5'd1;
    assign m_bready  = phase == ANSWER;

    always_ff @(posedge clk) begin
        if (!rst_n) begin
            phase <= IDLE;
        end else begin
            unique case (phase)
                IDLE: if (start) begin
                    phase        <= to_memory ? ASK_WRITE : ASK_READ;
                    next_address <= address;
                    words_left   <= words;
                    index        <= '0;
                end
                ASK_READ: begin
                    beats_left <= burst;
                    if (m_arready) phase <= READ;
                end
                READ: if (m_rvalid) begin
                    index      <= index + 10'd1;
                    beats_left <= beats_left - 5'd1;
                    words_left <= words_left - 11'd1;
                    if (m_rresp != 2'b00) begin
                        phase <= FAILED;
                    end else if (beats_left == 5'd1) begin
                        next_address <= next_address + 32'd64;
                        phase        <= words_left == 11'd1 ? IDLE : ASK_READ;
                    end
                end
                ASK_WRITE: begin
                    beats_left <= burst;
                    if (m_awready) phase <= FETCH;
                end
                FETCH: phase <= WRITE;
                WRITE: if (m_wready) begin
                    index      <= index + 10'd1;
                    beats_left <= beats_left - 5'd1;
                    words_left <= words_left - 11'd1;
                    phase      <= beats_left == 5'd1 ? ANSWER : FETCH;
                end
                ANSWER: if (m_bvalid) begin
                    next_address <= next_address + 32'd64;
                    if (m_bresp != 2'b00) phase <= FAILED;
                    else phase <= words_left == 11'd0 ? IDLE : ASK_WRITE;
                end
                default: phase <= FAILED;
            endcase
        end
    end
endmodule
