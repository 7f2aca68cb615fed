// AXI4-Lite on one side, on the other a plain bus: one write, or one read whose data comes a cycle later.
// Whole 32-bit words only; writes with other strobes are answered with SLVERR and not carried out.
module axi_lite_slave #(
    parameter int ADDR_BITS = 14
) (
    input  logic                 clk,
    input  logic                 rst_n,
    // AXI4-Lite
    input  logic                 awvalid,
    output logic                 awready,
    input  logic [ADDR_BITS-1:0] awaddr,
    input  logic                 wvalid,
    output logic                 wready,
    input  logic [31:0]          wdata,
    input  logic [3:0]           wstrb,
    output logic                 bvalid,
    input  logic                 bready,
    output logic [1:0]           bresp,
    input  logic                 arvalid,
    output logic                 arready,
    input  logic [ADDR_BITS-1:0] araddr,
    output logic                 rvalid,
    input  logic                 rready,
    output logic [31:0]          rdata,
    output logic [1:0]           rresp,
    // The plain bus
    output logic                 bus_write,
    output logic [ADDR_BITS-1:0] bus_addr,
    output logic [31:0]          bus_wdata,
    input  logic [31:0]          bus_rdata
);
    localparam logic [1:0] OKAY = 2'b00;
    localparam logic [1:0] SLVERR = 2'b10;

    logic takes_write, takes_read, read_under_way;

    // A write goes first; a read waits while one is taken, so that one address is enough.
    assign takes_write = awvalid && wvalid && !bvalid;
    assign takes_read  = arvalid && !takes_write && !read_under_way && !rvalid;
    assign awready     = takes_write;
    assign wready      = takes_write;
    assign arready     = takes_read;
    assign bus_write   = takes_write && wstrb == 4'b1111;
    assign bus_addr    = takes_write ? awaddr : araddr;
    assign bus_wdata   = wdata;
    assign rresp       = OKAY;

    always_ff @(posedge clk) begin
        if (!rst_n) begin
            bvalid         <= 1'b0;
            bresp          <= OKAY;
            rvalid         <= 1'b0;
            rdata          <= '0;
            read_under_way <= 1'b0;
        end else begin
            if (takes_write) begin
                bvalid <= 1'b1;
                bresp  <= wstrb == 4'b1111 ? OKAY : SLVERR;
            end else if (bready) begin
                bvalid <= 1'b0;
            end
            read_under_way <= takes_read;
            if (read_under_way) begin
                rvalid <= 1'b1;
                rdata  <= bus_rdata;
            end else if (rready) begin
                rvalid <= 1'b0;
            end
        end
    end
endmodule
