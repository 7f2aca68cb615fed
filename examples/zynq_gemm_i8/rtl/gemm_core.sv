// C += A B, or C = A B: int8 operands, int32 sums, on an array of ROWS x COLS multiply-accumulate units.
//
// A (M x K), B (K x N) and C (M x N) lie row-major, without gaps, in three block RAMs, four bytes to the word (so K and
// N are multiples of 4). A run is: A and B into banks that feed the whole array, a word per cycle each after the other;
// then for each block of ROWS x COLS outputs, sums set (a word per cycle where they come from C, else one cycle), K
// cycles of multiplying, sums stored, a word per cycle. So small tiles pay for moving, and tiles that do not fill the
// array pay for idle units: that is what tuning has to find out.
module gemm_core #(
    parameter int ROWS = 8,
    parameter int COLS = 8,
    parameter int RELU = 0,        // 1: store max(sum, 0)
    parameter int STUCK_AT_K = 0   // a defect on purpose: with this K it multiplies for ever, until it is reset
) (
    input  logic        clk,
    input  logic        rst_n,
    input  logic        start,
    output logic        busy,
    input  logic [9:0]  m,
    input  logic [9:0]  n,
    input  logic [9:0]  k,
    input  logic        accumulate,
    output logic [9:0]  a_addr,
    input  logic [31:0] a_rdata,
    output logic [9:0]  b_addr,
    input  logic [31:0] b_rdata,
    output logic        c_write,
    output logic [9:0]  c_addr,
    output logic [31:0] c_wdata,
    input  logic [31:0] c_rdata
);
    localparam int A_LINES = 256;   // (1024 / ROWS + 128) lines hold any A of 4 KiB with K <= 512
    localparam int B_LINES = 1024;  // (4096 / COLS + 512) lines hold any B of 4 KiB with K <= 512
    localparam int ROW_BITS = $clog2(ROWS);
    localparam int COL_BITS = $clog2(COLS);
    localparam int WORD_BITS = $clog2(COLS / 4);

    typedef enum logic [3:0] {IDLE, LOAD_A, LOAD_B, CLEAR, PRELOAD, MULTIPLY, DRAIN, STORE, NEXT} phase_t;
    phase_t phase;

    // ---- Moving A: word `load_index` of the RAM belongs to line `load_line` of bank `load_row`.
    logic [9:0]          load_index, load_column, load_group_base, load_major;
    logic [ROW_BITS-1:0] load_row;
    // ---- Moving B: it belongs to word `load_word` of line `load_line`.
    logic [WORD_BITS-1:0] load_word;
    logic [9:0]           load_line;
    // One cycle later, when the RAM has answered:
    logic                 a_arrives, b_arrives;
    logic [7:0]           a_line;
    logic [ROW_BITS-1:0]  a_row;
    logic [9:0]           b_line;
    logic [WORD_BITS-1:0] b_word;

    // ---- Blocks of outputs.
    logic [9:0]          row_base, col_base;    // first output of the block
    logic [9:0]          a_base, b_base;        // its first lines in the banks
    logic [9:0]          c_row_addr;            // word of C where the current row of the block starts
    logic [9:0]          c_block_addr;          // word of C where the block's rows start, column 0
    logic [ROW_BITS-1:0] r;
    logic [COL_BITS-1:0] c;
    logic                preload_arrives;
    logic [ROW_BITS-1:0] preload_r;
    logic [COL_BITS-1:0] preload_c;
    logic                last_row, last_col;

    // ---- The array.
    logic [9:0]              step;
    logic                    operands_arrive;
    logic [1:0]              a_byte;
    logic [31:0]             a_words[ROWS];
    logic [8*COLS-1:0]       b_values;
    logic signed [31:0]      sums[ROWS][COLS];
    logic signed [31:0]      stored;

    wire [9:0] words_per_a_row = {2'b00, k[9:2]};
    wire [9:0] words_per_b_row = {2'b00, n[9:2]};
    wire       load_row_ends   = load_column + 10'd1 == (phase == LOAD_A ? words_per_a_row : words_per_b_row);
    wire       load_ends       = load_row_ends && load_major + 10'd1 == (phase == LOAD_A ? m : k);

    assign a_addr   = load_index;
    assign b_addr   = load_index;
    assign last_col = c == COL_BITS'(COLS - 1) || col_base + 10'(c) + 10'd1 == n;
    assign last_row = r == ROW_BITS'(ROWS - 1) || row_base + 10'(r) + 10'd1 == m;
    assign c_addr   = c_row_addr + col_base + 10'(c);
    assign c_write  = phase == STORE;
    assign stored   = sums[r][c];
    assign c_wdata  = RELU != 0 && stored < 0 ? 32'd0 : stored;
    assign busy     = phase != IDLE;

    wire is_stuck = STUCK_AT_K != 0 && 32'(k) == STUCK_AT_K;

    always_ff @(posedge clk) begin
        if (!rst_n) begin
            phase <= IDLE;
        end else begin
            unique case (phase)
                IDLE: if (start) begin
                    phase           <= LOAD_A;
                    load_index      <= '0;
                    load_column     <= '0;
                    load_major      <= '0;
                    load_row        <= '0;
                    load_group_base <= '0;
                end
                LOAD_A: begin
                    load_index  <= load_index + 10'd1;
                    load_column <= load_row_ends ? '0 : load_column + 10'd1;
                    if (load_row_ends) begin
                        load_major <= load_major + 10'd1;
                        load_row   <= load_row == ROW_BITS'(ROWS - 1) ? '0 : load_row + 1'b1;
                        if (load_row == ROW_BITS'(ROWS - 1)) load_group_base <= load_group_base + words_per_a_row;
                    end
                    if (load_ends) begin
                        phase       <= LOAD_B;
                        load_index  <= '0;
                        load_column <= '0;
                        load_major  <= '0;
                        load_word   <= '0;
                        load_line   <= '0;
                    end
                end
                LOAD_B: begin
                    load_index  <= load_index + 10'd1;
                    load_column <= load_row_ends ? '0 : load_column + 10'd1;
                    load_word   <= load_row_ends || load_word == WORD_BITS'(COLS / 4 - 1) ? '0 : load_word + 1'b1;
                    if (load_row_ends) begin
                        load_major <= load_major + 10'd1;
                        load_line  <= load_major + 10'd1;
                    end else if (load_word == WORD_BITS'(COLS / 4 - 1)) begin
                        load_line <= load_line + k;
                    end
                    if (load_ends) begin
                        phase        <= accumulate ? PRELOAD : CLEAR;
                        row_base     <= '0;
                        col_base     <= '0;
                        a_base       <= '0;
                        b_base       <= '0;
                        c_row_addr   <= '0;
                        c_block_addr <= '0;
                        r            <= '0;
                        c            <= '0;
                    end
                end
                CLEAR: begin
                    phase <= MULTIPLY;
                    step  <= '0;
                end
                PRELOAD, STORE: begin
                    c <= last_col ? '0 : c + 1'b1;
                    if (last_col) begin
                        r          <= last_row ? '0 : r + 1'b1;
                        c_row_addr <= last_row ? c_block_addr : c_row_addr + n;
                        if (last_row) begin
                            phase <= phase == PRELOAD ? MULTIPLY : NEXT;
                            step  <= '0;
                        end
                    end
                end
                MULTIPLY: if (!is_stuck) begin
                    step <= step + 10'd1;
                    if (step + 10'd1 == k) phase <= DRAIN;
                end
                DRAIN: phase <= STORE;
                NEXT: begin
                    phase <= accumulate ? PRELOAD : CLEAR;
                    if (col_base + 10'(COLS) < n) begin
                        col_base <= col_base + 10'(COLS);
                        b_base   <= b_base + k;
                    end else if (row_base + 10'(ROWS) < m) begin
                        col_base     <= '0;
                        b_base       <= '0;
                        row_base     <= row_base + 10'(ROWS);
                        a_base       <= a_base + words_per_a_row;
                        c_block_addr <= c_block_addr + (n << ROW_BITS);
                        c_row_addr   <= c_block_addr + (n << ROW_BITS);
                    end else begin
                        phase <= IDLE;
                    end
                end
                default: phase <= IDLE;
            endcase
        end
    end

    // Into the banks, a cycle after the address.
    always_ff @(posedge clk) begin
        a_arrives <= phase == LOAD_A;
        a_row     <= load_row;
        a_line    <= 8'(load_group_base + load_column);
        b_arrives <= phase == LOAD_B;
        b_line    <= load_line;
        b_word    <= load_word;
    end

    for (genvar row = 0; row < ROWS; row++) begin : g_a_bank
        logic [31:0] lines[A_LINES];
        always_ff @(posedge clk) begin
            if (a_arrives && a_row == ROW_BITS'(row)) lines[a_line] <= a_rdata;
            a_words[row] <= lines[8'(a_base+(step>>2))];
        end
    end

    for (genvar word = 0; word < COLS / 4; word++) begin : g_b_bank
        logic [31:0] lines[B_LINES];
        always_ff @(posedge clk) begin
            if (b_arrives && b_word == WORD_BITS'(word)) lines[b_line] <= b_rdata;
            b_values[32*word+:32] <= lines[b_base+step];
        end
    end

    // Out of the banks and into the sums.
    always_ff @(posedge clk) begin
        operands_arrive <= phase == MULTIPLY;
        a_byte          <= step[1:0];
        preload_arrives <= phase == PRELOAD;
        preload_r       <= r;
        preload_c       <= c;
        for (int row = 0; row < ROWS; row++) begin
            for (int col = 0; col < COLS; col++) begin
                if (phase == CLEAR) sums[row][col] <= '0;
                else if (operands_arrive)
                    sums[row][col] <= sums[row][col]
                        + 32'($signed(a_words[row][8*a_byte+:8]) * $signed(b_values[8*col+:8]));
            end
        end
        if (preload_arrives) sums[preload_r][preload_c] <= c_rdata;
    end
endmodule
