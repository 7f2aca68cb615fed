// The design: the core behind an AXI4-Lite window of 16 KiB. registers.yaml describes the same window to software.
//
//   0x0000 CTRL      bit 0 starts a run and reads 1 until it is done; bit 1 resets the core and reads 0
//   0x0004 ID        what this is
//   0x0008 GEOMETRY  rows of the array, its columns << 8
//   0x000c M  0x0010 N  0x0014 K   extents: M K <= 4096, K N <= 4096, M N <= 1024, none 0, N and K <= 512 and
//                                  multiples of 4
//   0x0018 FLAGS     bit 0: add to what C holds
//   0x001c CYCLES    clock cycles of the latest run
//   0x1000 A   0x2000 B   0x3000 C   4 KiB each
module fabric #(
    parameter int ROWS = 8,
    parameter int COLS = 8,
    parameter int RELU = 0,
    parameter int STUCK_AT_K = 0,
    parameter bit [31:0] ID = 32'h474d4938
) (
    input  logic        clk,
    input  logic        rst_n,
    input  logic        awvalid,
    output logic        awready,
    input  logic [13:0] awaddr,
    input  logic        wvalid,
    output logic        wready,
    input  logic [31:0] wdata,
    input  logic [3:0]  wstrb,
    output logic        bvalid,
    input  logic        bready,
    output logic [1:0]  bresp,
    input  logic        arvalid,
    output logic        arready,
    input  logic [13:0] araddr,
    output logic        rvalid,
    input  logic        rready,
    output logic [31:0] rdata,
    output logic [1:0]  rresp
);
    logic        bus_write;
    logic [13:0] bus_addr;
    logic [31:0] bus_wdata, bus_rdata;

    axi_lite_slave #(.ADDR_BITS(14)) slave (.*);

    logic        core_rst_n, start, busy, accumulate;
    logic [31:0] cycles, register_rdata;
    logic [9:0]  m, n, k;

    wire       unused_addr = &{1'b0, bus_addr[1:0]};
    wire [1:0] area        = bus_addr[13:12];
    wire       is_register = area == 2'd0;
    wire       writes_ctrl = bus_write && is_register && bus_addr[11:2] == 10'd0;

    always_ff @(posedge clk) begin
        // The core sees both a cycle later; CTRL reads as busy from the very next cycle on.
        core_rst_n <= rst_n && !(writes_ctrl && bus_wdata[1]);
        start      <= rst_n && writes_ctrl && bus_wdata[0] && !bus_wdata[1];
        if (!rst_n) begin
            m          <= '0;
            n          <= '0;
            k          <= '0;
            accumulate <= 1'b0;
        end else if (bus_write && is_register && !busy && !start) begin
            case (bus_addr[11:2])
                10'd3:   m <= bus_wdata[9:0];
                10'd4:   n <= bus_wdata[9:0];
                10'd5:   k <= bus_wdata[9:0];
                10'd6:   accumulate <= bus_wdata[0];
                default: ;
            endcase
        end
    end

    // What is read a cycle later, as from the RAMs.
    logic [1:0] area_read;
    always_ff @(posedge clk) begin
        area_read <= area;
        case (bus_addr[11:2])
            10'd0:   register_rdata <= {31'd0, busy || start};
            10'd1:   register_rdata <= ID;
            10'd2:   register_rdata <= {16'd0, 8'(COLS), 8'(ROWS)};
            10'd3:   register_rdata <= {22'd0, m};
            10'd4:   register_rdata <= {22'd0, n};
            10'd5:   register_rdata <= {22'd0, k};
            10'd6:   register_rdata <= {31'd0, accumulate};
            10'd7:   register_rdata <= cycles;
            default: register_rdata <= '0;
        endcase
    end

    logic [9:0]  a_addr, b_addr, c_addr;
    logic [31:0] a_rdata, b_rdata, c_rdata, c_wdata;
    logic [31:0] a_bus_rdata, b_bus_rdata, c_bus_rdata;
    logic        c_write;

    dual_port_ram a_ram (
        .clk, .a_write(bus_write && area == 2'd1), .a_addr(bus_addr[11:2]), .a_wdata(bus_wdata), .a_rdata(a_bus_rdata),
        .b_write(1'b0), .b_addr(a_addr), .b_wdata('0), .b_rdata(a_rdata)
    );
    dual_port_ram b_ram (
        .clk, .a_write(bus_write && area == 2'd2), .a_addr(bus_addr[11:2]), .a_wdata(bus_wdata), .a_rdata(b_bus_rdata),
        .b_write(1'b0), .b_addr(b_addr), .b_wdata('0), .b_rdata(b_rdata)
    );
    dual_port_ram c_ram (
        .clk, .a_write(bus_write && area == 2'd3), .a_addr(bus_addr[11:2]), .a_wdata(bus_wdata), .a_rdata(c_bus_rdata),
        .b_write(c_write), .b_addr(c_addr), .b_wdata(c_wdata), .b_rdata(c_rdata)
    );

    always_comb begin
        unique case (area_read)
            2'd0: bus_rdata = register_rdata;
            2'd1: bus_rdata = a_bus_rdata;
            2'd2: bus_rdata = b_bus_rdata;
            2'd3: bus_rdata = c_bus_rdata;
        endcase
    end

    gemm_core #(.ROWS(ROWS), .COLS(COLS), .RELU(RELU), .STUCK_AT_K(STUCK_AT_K)) core (
        .clk, .rst_n(core_rst_n), .start, .busy, .cycles, .m, .n, .k, .accumulate,
        .a_addr, .a_rdata, .b_addr, .b_rdata, .c_write, .c_addr, .c_wdata, .c_rdata
    );
endmodule
