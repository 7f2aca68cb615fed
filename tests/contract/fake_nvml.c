/* A stand-in for NVIDIA's libnvidia-ml.so.1: the calls that the cuda driver makes, with the ABI of nvml.h.
 *
 * What it plays stands in a file of lines "key value", named by FAKE_NVML and read anew at every call, so that a test
 * can let things happen: a GPU that gets hot, a process that appears, a GPU that falls off the bus.
 *
 *   gpus 2
 *   0.name NVIDIA H200            0.uuid GPU-...       0.capability 9.0    0.memory 150754820096   0.free 150000000000
 *   0.temp 34   0.clock 1980   0.max_clock 1980   0.power 75123 [mW]   0.throttle 4   0.cores 16896   0.bus 00000000:3B:00.0
 *   0.pids 12,34      0.lost 1      0.rows_pending 1      0.rows_failed 1      0.xid 79
 *   0.mig 2   0.mig0.uuid MIG-...   0.mig0.name ... MIG 1g.5gb   0.mig0.memory   0.mig0.sms 14
 *   init 9                        return value of nvmlInit
 *   hang 1                        no reading comes back, nor a list of the GPUs, until this line is gone
 * A key that is not there makes the call answer NVML_ERROR_NOT_SUPPORTED.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT = 7, TIMEOUT = 10, LOST = 15 };
typedef struct { int gpu, instance; } Device; /* instance -1: the whole GPU */
static Device devices[8][9];

static const char *text(const char *key) {
    static __thread char values[8][256]; /* each driver reads in a thread of its own */
    static __thread int next;
    char *value = values[next = (next + 1) % 8], line[512];
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t length = strlen(key);
    const char *found = NULL;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, 256, "%s", line + length + 1);
            found = value;
        }
    if (file) fclose(file);
    return found;
}

static const char *of(const Device *device, const char *name) {
    char key[64];
    if (device->instance < 0) snprintf(key, sizeof key, "%d.%s", device->gpu, name);
    else snprintf(key, sizeof key, "%d.mig%d.%s", device->gpu, device->instance, name);
    return text(key);
}

static int is_lost(const Device *device) {
    Device whole = {device->gpu, -1};
    return of(&whole, "lost") != NULL;
}

static int number(const Device *device, const char *name, unsigned long long *value) {
    while (text("hang")) usleep(10000);
    if (is_lost(device)) return LOST;
    const char *found = of(device, name);
    if (!found) return NOT_SUPPORTED;
    *value = strtoull(found, NULL, 0);
    return OK;
}

static int number32(const Device *device, const char *name, unsigned *value) {
    unsigned long long wide = 0;
    int code = number(device, name, &wide);
    *value = (unsigned)wide;
    return code;
}

static int string(const char *value, char *out, unsigned size) {
    if (!value) return NOT_SUPPORTED;
    snprintf(out, size, "%s", value);
    return OK;
}

static Device *device_at(int gpu, int instance) {
    Device *device = &devices[gpu][instance + 1];
    device->gpu = gpu;
    device->instance = instance;
    return device;
}

static int count_of(const char *key) { const char *found = text(key); return found ? atoi(found) : 0; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return count_of("init"); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : code == 9 ? "Driver Not Loaded" : "Error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return string(text("driver"), out, size); }
int nvmlSystemGetCudaDriverVersion(int *out) { *out = count_of("cuda"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *out) { *out = count_of("gpus"); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) { *out = device_at(index, -1); return OK; }

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **out) {
    for (int gpu = 0; gpu < count_of("gpus"); gpu++)
        for (int instance = -1; instance < 8; instance++) {
            const char *found = of(device_at(gpu, instance), "uuid");
            if (found && !strcmp(found, uuid)) { *out = device_at(gpu, instance); return is_lost(*out) ? LOST : OK; }
        }
    return NOT_FOUND;
}

int nvmlDeviceGetName(Device *d, char *out, unsigned size) { return string(of(d, "name"), out, size); }
int nvmlDeviceGetUUID(Device *d, char *out, unsigned size) { return string(of(d, "uuid"), out, size); }

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(Device *d, Pci *out) { memset(out, 0, sizeof *out); return string(of(d, "bus"), out->bus_id, 32); }

int nvmlDeviceGetCudaComputeCapability(Device *d, int *major, int *minor) {
    const char *found = of(d, "capability");
    return found && sscanf(found, "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}

typedef struct { unsigned long long total, free, used; } Memory;
int nvmlDeviceGetMemoryInfo(Device *d, Memory *out) {
    int code = number(d, "memory", &out->total);
    if (code == OK && number(d, "free", &out->free) != OK) out->free = out->total;
    out->used = out->total - out->free;
    return code;
}

int nvmlDeviceGetNumGpuCores(Device *d, unsigned *out) { return number32(d, "cores", out); }
int nvmlDeviceGetClockInfo(Device *d, int type, unsigned *out) { return type == 1 ? number32(d, "clock", out) : INVALID; }
int nvmlDeviceGetMaxClockInfo(Device *d, int type, unsigned *out) { return type == 1 ? number32(d, "max_clock", out) : INVALID; }
int nvmlDeviceGetPowerUsage(Device *d, unsigned *out) { return number32(d, "power", out); }
int nvmlDeviceGetTemperature(Device *d, int sensor, unsigned *out) { return sensor ? INVALID : number32(d, "temp", out); }
int nvmlDeviceGetCurrentClocksEventReasons(Device *d, unsigned long long *out) { return number(d, "throttle", out); }

int nvmlDeviceGetMigMode(Device *d, unsigned *now, unsigned *pending) {
    if (!of(d, "mig")) return NOT_SUPPORTED;
    *now = *pending = 1;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *out) { (void)d; *out = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned index, Device **out) {
    unsigned count = 0;
    if (number32(d, "mig", &count) != OK || index >= count) return NOT_FOUND;
    *out = device_at(d->gpu, index);
    return OK;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *d, Device **out) { *out = device_at(d->gpu, -1); return OK; }

typedef struct { unsigned sms, copy, decode, encode, jpeg, ofa, gpu_slices, compute_slices; unsigned long long memory_mb; } Attributes;
int nvmlDeviceGetAttributes_v2(Device *d, Attributes *out) { memset(out, 0, sizeof *out); return number32(d, "sms", &out->sms); }

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, Process *out) {
    if (is_lost(d)) return LOST;
    const char *found = of(d, "pids");
    unsigned room = *count;
    *count = 0;
    for (const char *at = found; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        if (*count < room && out) { memset(&out[*count], 0, sizeof *out); out[*count].pid = atoi(at); }
        ++*count;
    }
    return *count > room ? INSUFFICIENT : OK;
}

int nvmlDeviceGetRemappedRows(Device *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = *uncorrected = 0;
    *pending = of(d, "rows_pending") != NULL;
    *failed = of(d, "rows_failed") != NULL;
    return OK;
}

static int told_xid;
typedef struct { Device *device; unsigned long long type, value; unsigned gpu_instance, compute_instance; } Event;
int nvmlEventSetCreate(void **out) { static int set; told_xid = 0; *out = &set; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(Device *d, unsigned long long types, void *set) { (void)d; (void)set; return types == 8 ? OK : INVALID; }
int nvmlEventSetWait_v2(void *set, Event *out, unsigned timeout_ms) {
    (void)set; (void)timeout_ms;
    unsigned long long xid = 0;
    if (told_xid || number(device_at(0, -1), "xid", &xid) != OK) return TIMEOUT;
    told_xid = 1;
    memset(out, 0, sizeof *out);
    out->device = device_at(0, -1);
    out->type = 8;
    out->value = xid;
    return OK;
}
