// The design: the core behind an AXI4-Lite window of 16 KiB, and an AXI4 master that can fetch its operands. registers.yaml describes the same window to software.
//
//   0x0000 CTRL      bit 0 starts a run and reads 1 until it is done; bit 1 resets the core and reads 0
//   0x0004 ID        what this is
//   0x0008 GEOMETRY  rows of the array, its columns << 8
//   0x000c M  0x0010 N  0x0014 K   extents: M K <= 4096, K N <= 4096, M N <= 1024, none 0, N and K <= 512 and
//                                  multiples of 4
//   0x0018 FLAGS     bit 0: add to what C holds; bit 1: A, B and C are in memory, at
//   0x0020 A_ADDRESS   0x0024 B_ADDRESS   0x0028 C_ADDRESS   bus addresses, multiples of 64
//   0x001c CYCLES    clock cycles of the latest run, from its start to its end
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
    output logic [1:0]  rresp,
    // AXI4 to memory
    output logic        m_arvalid,
    input  logic        m_arready,
    output logic [31:0] m_araddr,
    output logic [7:0]  m_arlen,
    output logic [2:0]  m_arsize,
    output logic [1:0]  m_arburst,
    input  logic        m_rvalid,
    output logic        m_rready,
    input  logic [31:0] m_rdata,
    input  logic [1:0]  m_rresp,
    output logic        m_awvalid,
    input  logic        m_awready,
    output logic [31:0] m_awaddr,
    output logic [7:0]  m_awlen,
    output logic [2:0]  m_awsize,
    output logic [1:0]  m_awburst,
    output logic        m_wvalid,
    input  logic        m_wready,
    output logic [31:0] m_wdata,
    output logic [3:0]  m_wstrb,
    output logic        m_wlast,
    input  logic        m_bvalid,
    output logic        m_bready,
    input  logic [1:0]  m_bresp
);
    localparam logic [2:0] FOUR_BYTES = 3'd2;
    localparam logic [1:0] INCREASING = 2'b01;

    assign m_arsize  = FOUR_BYTES;
    assign m_awsize  = FOUR_BYTES;
    assign m_arburst = INCREASING;
    assign m_awburst = INCREASING;
    assign m_wstrb   = 4'b1111;

    logic        bus_write;
    logic [13:0] bus_addr;
    logic [31:0] bus_wdata, bus_rdata;

    axi_lite_slave #(.ADDR_BITS(14)) slave (.*);

    logic        core_rst_n, start, busy, accumulate, from_memory;
    logic [31:0] cycles, register_rdata, a_address, b_address, c_address;
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
            from_memory <= 1'b0;
            a_address  <= '0;
            b_address  <= '0;
            c_address  <= '0;
        end else if (bus_write && is_register && !busy && !start) begin
            case (bus_addr[11:2])
                10'd3:   m <= bus_wdata[9:0];
                10'd4:   n <= bus_wdata[9:0];
                10'd5:   k <= bus_wdata[9:0];
                10'd6:   {from_memory, accumulate} <= bus_wdata[1:0];
                10'd8:   a_address <= {bus_wdata[31:6], 6'd0};
                10'd9:   b_address <= {bus_wdata[31:6], 6'd0};
                10'd10:  c_address <= {bus_wdata[31:6], 6'd0};
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
            10'd6:   register_rdata <= {30'd0, from_memory, accumulate};
            10'd7:   register_rdata <= cycles;
            10'd8:   register_rdata <= a_address;
            10'd9:   register_rdata <= b_address;
            10'd10:  register_rdata <= c_address;
            default: register_rdata <= '0;
        endcase
    end

    // Each RAM's second port is the core's, or the DMA engine's while that moves this buffer.
    logic [9:0]  a_addr, b_addr, c_addr, dma_ram_addr;
    logic [31:0] a_rdata, b_rdata, c_rdata, c_wdata, dma_ram_wdata;
    logic [31:0] a_bus_rdata, b_bus_rdata, c_bus_rdata;
    logic        c_write, core_start, core_busy;
    logic        dma_start, dma_busy, dma_to_memory, dma_ram_write;
    logic [31:0] dma_address;
    logic [10:0] dma_words;
    logic [1:0]  dma_buffer;

    wire dma_has_a = dma_busy && dma_buffer == 2'd1;
    wire dma_has_b = dma_busy && dma_buffer == 2'd2;
    wire dma_has_c = dma_busy && dma_buffer == 2'd3;

    dual_port_ram a_ram (
        .clk, .a_write(bus_write && area == 2'd1), .a_addr(bus_addr[11:2]), .a_wdata(bus_wdata), .a_rdata(a_bus_rdata),
        .b_write(dma_has_a && dma_ram_write), .b_addr(dma_has_a ? dma_ram_addr : a_addr), .b_wdata(dma_ram_wdata),
        .b_rdata(a_rdata)
    );
    dual_port_ram b_ram (
        .clk, .a_write(bus_write && area == 2'd2), .a_addr(bus_addr[11:2]), .a_wdata(bus_wdata), .a_rdata(b_bus_rdata),
        .b_write(dma_has_b && dma_ram_write), .b_addr(dma_has_b ? dma_ram_addr : b_addr), .b_wdata(dma_ram_wdata),
        .b_rdata(b_rdata)
    );
    dual_port_ram c_ram (
        .clk, .a_write(bus_write && area == 2'd3), .a_addr(bus_addr[11:2]), .a_wdata(bus_wdata), .a_rdata(c_bus_rdata),
        .b_write(dma_has_c ? dma_ram_write : c_write), .b_addr(dma_has_c ? dma_ram_addr : c_addr),
        .b_wdata(dma_has_c ? dma_ram_wdata : c_wdata), .b_rdata(c_rdata)
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
        .clk, .rst_n(core_rst_n), .start(core_start), .busy(core_busy), .m, .n, .k, .accumulate,
        .a_addr, .a_rdata, .b_addr, .b_rdata, .c_write, .c_addr, .c_wdata, .c_rdata
    );

    sequencer sequencer (
        .clk, .rst_n(core_rst_n), .start, .from_memory, .accumulate, .m, .n, .k, .a_address, .b_address, .c_address,
        .busy, .cycles, .core_start, .core_busy, .dma_start, .dma_to_memory, .dma_address, .dma_words, .dma_buffer,
        .dma_busy
    );

    dma_engine dma (
        .clk, .rst_n(core_rst_n), .start(dma_start), .to_memory(dma_to_memory), .address(dma_address),
        .words(dma_words), .busy(dma_busy), .ram_addr(dma_ram_addr), .ram_write(dma_ram_write),
        .ram_wdata(dma_ram_wdata), .ram_rdata(c_rdata), .m_arvalid, .m_arready, .m_araddr, .m_arlen, .m_rvalid,
        .m_rready, .m_rdata, .m_rresp, .m_awvalid, .m_awready, .m_awaddr, .m_awlen, .m_wvalid, .m_wready, .m_wdata,
        .m_wlast, .m_bvalid, .m_bready, .m_bresp
    );
endmodule
