// Clocks that a test sets: preloaded into a process, they are as the file says that SERVER_WALL names, two 64-bit integers. The wall is
// as many nanoseconds ahead of the machine's as the first says, which may change at any time. The time since the machine was started
// grows faster by so many parts per million as the second says, from the start of the process on. The other clocks are the machine's.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *set;
static long long began_ns;

static long long read_ns(clockid_t clock) {
  struct timespec at = {0, 0};
  syscall(SYS_clock_gettime, clock, &at);
  return at.tv_sec * 1000000000LL + at.tv_nsec;
}

__attribute__((constructor)) static void open_wall(void) {
  const char *path = getenv("SERVER_WALL");
  int file = path ? open(path, O_RDONLY) : -1;
  if (file < 0) abort();
  void *page = mmap(NULL, 2 * sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
  if (page == MAP_FAILED) abort();
  close(file);
  began_ns = read_ns(CLOCK_BOOTTIME);
  set = page;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  int failed = (int)syscall(SYS_clock_gettime, clock, at);
  int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (!failed && set && (is_wall || clock == CLOCK_BOOTTIME)) {
    long long ns = at->tv_sec * 1000000000LL + at->tv_nsec;
    ns += is_wall ? set[0] : (ns - began_ns) * set[1] / 1000000;
    at->tv_sec = ns / 1000000000LL;
    at->tv_nsec = ns % 1000000000LL;
  }
  return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  (void)zone;
  struct timespec now;
  int failed = clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return failed;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
