/* SPDX-License-Identifier: Apache-2.0
 * A fake libnvidia-ml.so.1, written for penstock's tests from the public signatures
 * of nvml.h; no NVIDIA code inside. The real go-nvml opens and calls it.
 *
 * It behaves as the environment says, or as the "KEY value" lines of the file named
 * by NVMLSTUB_FILE do, which is read again on every call and so steers a running
 * process:
 *   NVMLSTUB_GPUS     number of GPUs (2)
 *   NVMLSTUB_UTIL     percent (10, 20, ... by index)
 *   NVMLSTUB_USED_MIB NVMLSTUB_TEMP NVMLSTUB_POWER_MW NVMLSTUB_ECC NVMLSTUB_CLOCKS NVMLSTUB_DRIVER
 *   NVMLSTUB_MIG      number of MIG devices per GPU (0: MIG is off)
 *   NVMLSTUB_LOST     index of a GPU that answers "lost" (-1)
 *   NVMLSTUB_XID      gpu:code:serial, reported once per new serial
 *   NVMLSTUB_UNBIND   1: a driver leaves a GPU
 *   NVMLSTUB_FAULT    function:what. function: init, count, handle, uuid, utilization,
 *                     memory, temperature, power, shutdown or any. what: an NVML return
 *                     code, hang, exit (127, as the linker ends a process that calls a
 *                     function the library lacks), segv, leak:MIB, slow:MS.
 * With -DOLD_DRIVER the functions are missing that old drivers lack. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int ret;
typedef void *dev;
typedef unsigned long long u64;
typedef struct { unsigned gpu, memory; } util_t;
typedef struct { u64 total, free, used; } mem1_t;
typedef struct { unsigned version; u64 total, reserved, free, used; } mem2_t;
typedef struct { unsigned version; int sensor; int temperature; } temp_t;
typedef struct { dev device; u64 type, data; unsigned gi, ci; } event_t;
typedef struct { unsigned version; void *set; } sysset_t;
typedef struct { unsigned version; u64 types; void *set; } sysreg_t;
typedef struct { u64 type; unsigned gpu; } sysevent_t;
typedef struct { unsigned version, timeout; void *set; sysevent_t *data; unsigned size, n; } syswait_t;
enum { INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10, LOST = 15, VERSION = 25 };
/* A handle is index + 1; of a MIG device also 1000 * (place + 1). */
#define HANDLE(d) ((int)(long)(d))
#define IDX(d) (HANDLE(d) % 1000 - 1)
#define PART(d) (HANDLE(d) / 1000 - 1)
#define API __attribute__((visibility("default")))

static const char *opt(const char *key, const char *def) {
  static __thread char buf[256];
  const char *path = getenv("NVMLSTUB_FILE");
  FILE *f = path ? fopen(path, "re") : NULL;
  if (f) {
    char k[64], v[128];
    int hit = 0;
    while (fscanf(f, "%63s %127s", k, v) == 2)
      if (!strcmp(k, key)) { strcpy(buf, v); hit = 1; }
    fclose(f);
    if (hit) return buf;
  }
  const char *e = getenv(key);
  return e ? e : def;
}
static int num(const char *key, int def) { const char *s = opt(key, NULL); return s ? atoi(s) : def; }

static ret fault(const char *fn) {
  const char *f = opt("NVMLSTUB_FAULT", NULL), *c = f ? strchr(f, ':') : NULL;
  if (!c) return 0;
  size_t n = (size_t)(c - f);
  if (!(n == 3 && !strncmp(f, "any", 3)) && (strlen(fn) != n || strncmp(f, fn, n))) return 0;
  c++;
  if (!strcmp(c, "hang")) for (;;) pause();
  if (!strcmp(c, "exit")) _exit(127);
  if (!strcmp(c, "segv")) *(volatile int *)0 = 0;
  if (!strncmp(c, "slow:", 5)) { usleep((useconds_t)atoi(c + 5) * 1000); return 0; }
  if (!strncmp(c, "leak:", 5)) {
    size_t size = (size_t)atoi(c + 5) << 20;
    volatile char *p = malloc(size);
    for (size_t i = 0; p && i < size; i += 4096) p[i] = 1;
    return 0;
  }
  return atoi(c);
}
#define F(fn) do { ret r_ = fault(fn); if (r_) return r_; } while (0)
#define DEV(d) do { if (IDX(d) < 0 || IDX(d) >= num("NVMLSTUB_GPUS", 2)) return INVALID; \
  if (IDX(d) == num("NVMLSTUB_LOST", -1)) return LOST; } while (0)

API ret nvmlInit_v2(void) { F("init"); return 0; }
API ret nvmlInitWithFlags(unsigned fl) { (void)fl; F("init"); return 0; }
API ret nvmlShutdown(void) { F("shutdown"); return 0; }
API const char *nvmlErrorString(ret r) { (void)r; return "stub"; }
API ret nvmlSystemGetDriverVersion(char *v, unsigned n) { snprintf(v, n, "%s", opt("NVMLSTUB_DRIVER", "580.00.stub")); return 0; }
API ret nvmlDeviceGetCount_v2(unsigned *n) { F("count"); *n = (unsigned)num("NVMLSTUB_GPUS", 2); return 0; }
API ret nvmlDeviceGetHandleByIndex_v2(unsigned i, dev *d) {
  F("handle");
  if ((int)i >= num("NVMLSTUB_GPUS", 2)) return INVALID;
  if ((int)i == num("NVMLSTUB_LOST", -1)) return LOST;
  *d = (dev)(long)(i + 1);
  return 0;
}
API ret nvmlDeviceGetUUID(dev d, char *s, unsigned n) {
  F("uuid"); DEV(d);
  if (PART(d) < 0) snprintf(s, n, "GPU-00000000-0000-0000-0000-%012d", IDX(d));
  else snprintf(s, n, "MIG-00000000-0000-0000-%04d-%012d", PART(d), IDX(d));
  return 0;
}
API ret nvmlDeviceGetUtilizationRates(dev d, util_t *u) {
  F("utilization"); DEV(d);
  if (num("NVMLSTUB_MIG", 0)) return UNSUPPORTED;
  u->gpu = (unsigned)num("NVMLSTUB_UTIL", 10 * (IDX(d) + 1)); u->memory = u->gpu / 2;
  return 0;
}
API ret nvmlDeviceGetMemoryInfo(dev d, mem1_t *m) {
  F("memory"); DEV(d);
  m->total = (PART(d) < 0 ? 80ULL : 10ULL) << 30; m->used = (u64)num("NVMLSTUB_USED_MIB", 1024) << 20; m->free = m->total - m->used;
  return 0;
}
API ret nvmlDeviceGetPowerUsage(dev d, unsigned *mw) { F("power"); DEV(d); *mw = (unsigned)num("NVMLSTUB_POWER_MW", 100000); return 0; }
API ret nvmlDeviceGetTemperature(dev d, int sensor, unsigned *t) { F("temperature"); DEV(d); (void)sensor; *t = (unsigned)num("NVMLSTUB_TEMP", 40 + IDX(d)); return 0; }
#ifdef OLD_DRIVER
API ret nvmlDeviceGetCurrentClocksThrottleReasons(dev d, u64 *bits) { DEV(d); *bits = (u64)num("NVMLSTUB_CLOCKS", 4); return 0; }
#else
API ret nvmlDeviceGetMemoryInfo_v2(dev d, mem2_t *m) {
  F("memory"); DEV(d);
  if (m->version != (sizeof(mem2_t) | 2u << 24)) return VERSION;
  m->total = (PART(d) < 0 ? 80ULL : 10ULL) << 30; m->reserved = 512ULL << 20;
  m->used = (u64)num("NVMLSTUB_USED_MIB", 1024) << 20; m->free = m->total - m->reserved - m->used;
  return 0;
}
API ret nvmlDeviceGetTemperatureV(dev d, temp_t *t) { F("temperature"); DEV(d); t->temperature = num("NVMLSTUB_TEMP", 40 + IDX(d)); return 0; }
API ret nvmlDeviceGetCurrentClocksEventReasons(dev d, u64 *bits) { DEV(d); *bits = (u64)num("NVMLSTUB_CLOCKS", 4); return 0; }
API ret nvmlDeviceGetTotalEccErrors(dev d, int type, int counter, u64 *n) { DEV(d); (void)counter; *n = (u64)num("NVMLSTUB_ECC", 0) * (type == 0); return 0; }
API ret nvmlDeviceGetRemappedRows(dev d, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed) {
  DEV(d);
  if (num("NVMLSTUB_MIG", 0)) return UNSUPPORTED;
  *corr = 0; *unc = 1; *pending = 1; *failed = 0;
  return 0;
}
API ret nvmlDeviceGetMigMode(dev d, unsigned *c, unsigned *p) { DEV(d); *c = *p = num("NVMLSTUB_MIG", 0) > 0; return 0; }
API ret nvmlDeviceGetMaxMigDeviceCount(dev d, unsigned *n) { DEV(d); *n = 7; return 0; }
API ret nvmlDeviceGetMigDeviceHandleByIndex(dev d, unsigned i, dev *part) {
  DEV(d);
  if ((int)i >= num("NVMLSTUB_MIG", 0)) return NOT_FOUND;
  *part = (dev)(long)(HANDLE(d) + 1000 * ((int)i + 1));
  return 0;
}
API ret nvmlDeviceGetGpuInstanceId(dev d, unsigned *id) { DEV(d); if (PART(d) < 0) return INVALID; *id = 7 + (unsigned)PART(d); return 0; }

API ret nvmlEventSetCreate(void **set) { *set = (void *)1; return 0; }
API ret nvmlEventSetFree(void *set) { (void)set; return 0; }
API ret nvmlDeviceRegisterEvents(dev d, u64 types, void *set) { DEV(d); (void)types; (void)set; return 0; }
API ret nvmlEventSetWait_v2(void *set, event_t *e, unsigned ms) {
  static int seen = 0;
  int gpu, code, serial;
  const char *s = opt("NVMLSTUB_XID", "");
  (void)set; (void)ms;
  if (sscanf(s, "%d:%d:%d", &gpu, &code, &serial) != 3 || serial == seen) return TIMEOUT;
  seen = serial;
  *e = (event_t){(dev)(long)(gpu + 1), 8, (u64)code, ~0u, ~0u};
  return 0;
}
API ret nvmlSystemEventSetCreate(sysset_t *r) {
  if (r->version != (sizeof *r | 1u << 24)) return VERSION;
  r->set = (void *)2;
  return 0;
}
API ret nvmlSystemEventSetFree(sysset_t *r) { (void)r; return 0; }
API ret nvmlSystemRegisterEvents(sysreg_t *r) { return r->version == (sizeof *r | 1u << 24) && r->set ? 0 : VERSION; }
API ret nvmlSystemEventSetWait(syswait_t *r) {
  if (r->version != (sizeof *r | 1u << 24)) return VERSION;
  r->n = 0;
  if (!num("NVMLSTUB_UNBIND", 0)) return TIMEOUT;
  r->data[0] = (sysevent_t){1, 0};
  r->n = 1;
  return 0;
}
#endif
