// Block RAM with two ports that each read or write one word per cycle; a read comes a cycle later.
module dual_port_ram #(
    parameter int WORDS = 1024,
    localparam int BITS = $clog2(WORDS)
) (
    input  logic            clk,
    input  logic            a_write,
    input  logic [BITS-1:0] a_addr,
    input  logic [31:0]     a_wdata,
    output logic [31:0]     a_rdata,
    input  logic            b_write,
    input  logic [BITS-1:0] b_addr,
    input  logic [31:0]     b_wdata,
    output logic [31:0]     b_rdata
);
    logic [31:0] words[WORDS];

    // Two plain processes: the form that synthesis takes for a true dual-port block RAM.
    always @(posedge clk) begin
        if (a_write) words[a_addr] <= a_wdata;
        a_rdata <= words[a_addr];
    end

    always @(posedge clk) begin
        if (b_write) words[b_addr] <= b_wdata;
        b_rdata <= words[b_addr];
    end
endmodule
