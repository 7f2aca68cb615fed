/* Multiply-adds of independent vectors on all threads: prints the best rate of several tries [operations per second]. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined(__AVX512F__)
#define BYTES 64
#define SUMS 24
#elif defined(__AVX__)
#define BYTES 32
#define SUMS 12
#else
#define BYTES 16
#define SUMS 24
#endif
#define ROUNDS 4000000L
#define TRIES 50

typedef float vector __attribute__((vector_size(BYTES)));

static void *multiply(void *result) {
  vector sums[SUMS], factor, term;
  for (int lane = 0; lane < BYTES / 4; lane++) {
    factor[lane] = 0.999f;
    term[lane] = 0.1f;
  }
  for (int i = 0; i < SUMS; i++) sums[i] = factor * (float)i;
  for (long round = 0; round < ROUNDS; round++) {
#pragma GCC unroll 24
    for (int i = 0; i < SUMS; i++) sums[i] = sums[i] * factor + term;
  }
  vector all = term;
  for (int i = 0; i < SUMS; i++) all += sums[i];
  *(float *)result = all[0];
  return NULL;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 1;
  pthread_t others[256];
  float results[256];
  double best = 0;
  if (threads < 1 || threads > 256) return 1;
  for (int i = 0; i < TRIES; i++) {
    double started = now();
    for (int t = 1; t < threads; t++) pthread_create(&others[t], NULL, multiply, &results[t]);
    multiply(&results[0]);
    for (int t = 1; t < threads; t++) pthread_join(others[t], NULL);
    double rate = 2.0 * threads * ROUNDS * SUMS * (BYTES / 4) / (now() - started);
    if (rate > best) best = rate;
  }
  fprintf(stderr, "%g\n", results[0]);
  printf("%.6g\n", best);
  return 0;
}
