/* A program on rsockets that does what it is told:
 *
 *   rsocket listen|connect ADDRESS PORT COMMAND...
 *
 * One connection is made, and the commands are carried out in order:
 *
 *   send:N:SEED              N bytes of a pattern
 *   recv:N:SEED              N bytes, which must be that pattern
 *   eof                      the end of the peer's stream
 *   broken                   rrecv fails
 *   shut:HOW                 rshutdown
 *   keepalive:SECONDS
 *   idle:MS                  does nothing for so long
 *   map:OFFSET:N             offers the peer N bytes (riomap), as the next of the maps 0, 1, ...
 *   tell                     sends the offset of the last map, 8 bytes, little-endian
 *   unmap:MAP                riounmap; all of them before close, as rclose of librdmacm 44 does not end otherwise
 *   check:MAP:N:SEED         the memory of a map begins with a pattern
 *   write:OFFSET:N:SEED      a pattern to what the peer offers (riowrite)
 *   nomap:OFFSET             riowrite writes nothing there
 *   close                    rclose
 *   die                      ends without rclose
 *
 * It says "done" and ends with status 0, or says what went wrong.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <rdma/rsocket.h>

static const char *now = "start";

static void fail(const char *what)
{
	printf("%s: %s: %s\n", now, what, strerror(errno));
	exit(1);
}

static uint8_t pattern(long seed, long i) { return (uint8_t) (seed + 7 * i + (i >> 8)); }

static void fill(uint8_t *b, long n, long seed)
{
	for (long i = 0; i < n; i++)
		b[i] = pattern(seed, i);
}

static void compare(const uint8_t *b, long n, long seed)
{
	for (long i = 0; i < n; i++)
		if (b[i] != pattern(seed, i)) {
			printf("%s: byte %ld is %#x, not %#x\n", now, i, b[i], pattern(seed, i));
			exit(1);
		}
}

static void send_all(int s, const uint8_t *b, long n)
{
	for (long at = 0; at < n;) {
		ssize_t k = rsend(s, b + at, n - at, 0);
		if (k <= 0)
			fail("rsend");
		at += k;
	}
}

static void recv_all(int s, uint8_t *b, long n)
{
	for (long at = 0; at < n;) {
		ssize_t k = rrecv(s, b + at, n - at, 0);
		if (k <= 0)
			fail(k ? "rrecv" : "rrecv: the end of the stream");
		at += k;
	}
}

static void write_all(int s, const uint8_t *b, long n, off_t offset)
{
	for (long at = 0; at < n;) {
		size_t k = riowrite(s, b + at, n - at, offset + at, 0);
		if (k == (size_t) -1 || k == 0)
			fail("riowrite");
		at += k;
	}
}

static struct map {
	void *buf;
	long len;
	off_t offset;
} maps[16];
static int mapped;

static void do_map(int s, long offset, long n)
{
	struct map *m = &maps[mapped++];

	m->len = n;
	m->buf = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	m->offset = riomap(s, m->buf, n, PROT_WRITE, 0, offset);
	if (m->offset == -1)
		fail("riomap");
}

static int join(char *how, char *address, char *port)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *ai;
	int s, on = 1;

	if (getaddrinfo(address, port, &hints, &ai))
		fail("getaddrinfo");
	if ((s = rsocket(ai->ai_family, SOCK_STREAM, 0)) < 0)
		fail("rsocket");
	if (!strcmp(how, "connect")) {
		if (rconnect(s, ai->ai_addr, ai->ai_addrlen))
			fail("rconnect");
		return s;
	}
	rsetsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (rbind(s, ai->ai_addr, ai->ai_addrlen) || rlisten(s, 1))
		fail("rlisten");
	if ((s = raccept(s, NULL, NULL)) < 0)
		fail("raccept");
	return s;
}

int main(int argc, char **argv)
{
	int s, on = 1;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 4)
		return 2;
	s = join(argv[1], argv[2], argv[3]);
	for (int i = 4; i < argc; i++) {
		char name[16] = "";
		long a = 0, b = 0, c = 0;
		uint8_t byte = 0, *p = NULL;

		now = argv[i];
		errno = 0;
		sscanf(argv[i], "%15[a-z]:%ld:%ld:%ld", name, &a, &b, &c);
		if (!strcmp(name, "send") || !strcmp(name, "recv") || !strcmp(name, "write"))
			p = malloc(a > b ? a : b);
		if (!strcmp(name, "send")) {
			fill(p, a, b);
			send_all(s, p, a);
		} else if (!strcmp(name, "recv")) {
			recv_all(s, p, a);
			compare(p, a, b);
		} else if (!strcmp(name, "write")) {
			fill(p, b, c);
			write_all(s, p, b, a);
		} else if (!strcmp(name, "eof")) {
			if (rrecv(s, &byte, 1, 0) != 0)
				fail("not the end of the stream");
		} else if (!strcmp(name, "broken")) {
			if (rrecv(s, &byte, 1, 0) >= 0)
				fail("rrecv does not fail");
		} else if (!strcmp(name, "shut")) {
			if (rshutdown(s, a))
				fail("rshutdown");
		} else if (!strcmp(name, "keepalive")) {
			int idle = a;
			if (rsetsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) ||
			    rsetsockopt(s, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle))
				fail("rsetsockopt");
		} else if (!strcmp(name, "idle")) {
			usleep(a * 1000);
		} else if (!strcmp(name, "map")) {
			do_map(s, a, b);
		} else if (!strcmp(name, "tell")) {
			int64_t offset = maps[mapped - 1].offset;
			send_all(s, (uint8_t *) &offset, sizeof offset);
		} else if (!strcmp(name, "unmap")) {
			if (riounmap(s, maps[a].buf, maps[a].len))
				fail("riounmap");
		} else if (!strcmp(name, "check")) {
			compare(maps[a].buf, b, c);
		} else if (!strcmp(name, "nomap")) {
			if (riowrite(s, &byte, 1, a, 0) == 1)
				fail("riowrite finds a map");
		} else if (!strcmp(name, "close")) {
			if (rclose(s))
				fail("rclose");
		} else if (!strcmp(name, "die")) {
			printf("done\n");
			_exit(0);
		} else {
			fail("no such command");
		}
		free(p);
	}
	printf("done\n");
	return 0;
}
