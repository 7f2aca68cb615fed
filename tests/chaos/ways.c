/* Leads a program's connections to other ports, as CHAOS_WAYS="9290:40001 9291:40002" says: LD_PRELOAD this. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static in_port_t led(in_port_t port) {
  const char *ways = getenv("CHAOS_WAYS");
  int from, to, size;
  for (; ways && sscanf(ways, "%d:%d%n", &from, &to, &size) == 2; ways += size)
    if (htons((uint16_t)from) == port) return htons((uint16_t)to);
  return port;
}

int connect(int file, const struct sockaddr *to, socklen_t size) {
  union {
    struct sockaddr any;
    struct sockaddr_in v4; /* has its port where v6 has it */
    struct sockaddr_in6 v6;
  } other;
  if (size < sizeof other.v4 || size > sizeof other || (to->sa_family != AF_INET && to->sa_family != AF_INET6))
    return (int)syscall(SYS_connect, file, to, size);
  memcpy(&other, to, size);
  other.v4.sin_port = led(other.v4.sin_port);
  return (int)syscall(SYS_connect, file, &other.any, size);
}
