#include "verbs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>

struct fake *fake;

pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void begin(void)
{
	const char *file = getenv("VERBENA_FAKE");
	int fd = file ? open(file, O_RDWR | O_CLOEXEC) : -1;
	void *p = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*fake), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (fd >= 0)
		close(fd);
	if (p == MAP_FAILED)
		p = calloc(1, sizeof(*fake));
	fake = p;
#define X(f) strcpy(fake->fn[F_##f].name, #f);
	FNS(X)
#undef X
#define X(w) strcpy(fake->word[W_##w].name, #w);
	FAKE_WORDS(X)
#undef X
	W(devices) = 1;
	W(port_state) = 4;
	W(khz) = 1000000;
}

void fake_violation(const char *format, ...)
{
	va_list args;

	if (__atomic_fetch_add(&fake->violations, 1, __ATOMIC_SEQ_CST))
		return;
	va_start(args, format);
	vsnprintf(fake->violation, sizeof(fake->violation), format, args);
	va_end(args);
}

int fake_enter(int f)
{
	struct fake_fn *fn = &fake->fn[f];

	__atomic_fetch_add(&fn->calls, 1, __ATOMIC_RELAXED);
	if (!fn->err || fn->skip-- > 0)
		return 0;
	return fn->err;
}

int fake_pipe(int *w)
{
	int p[2];

	if (pipe2(p, O_CLOEXEC))
		return -1;
	*w = p[1];
	fcntl(p[1], F_SETFL, O_NONBLOCK);
	return p[0];
}

void *new(size_t n)
{
	void *p = calloc(1, n);

	if (!p)
		abort();
	return p;
}

void *null(int e)
{
	errno = e;
	return NULL;
}

int minus(int e)
{
	errno = e;
	return -1;
}

// Devices.

static struct abi_device devices[4];

struct abi_device **ibv_get_device_list(int *n)
{
	struct abi_device **l;
	int i, err = ENTER(ibv_get_device_list);

	if (err)
		return null(err);
	l = new(5 * sizeof(*l));
	for (i = 0; i < W(devices) && i < 4; i++) {
		struct abi_device *d = l[i] = &devices[i];

		snprintf(d->name, sizeof(d->name), "fake%d", i);
		snprintf(d->dev_name, sizeof(d->dev_name), "uverbs%d", i);
		snprintf(d->ibdev_path, sizeof(d->ibdev_path), "/sys/class/infiniband/fake%d", i);
		d->node_type = 1;
	}
	*n = i;
	return l;
}

void ibv_free_device_list(struct abi_device **l) { (void)l; }
uint64_t ibv_get_device_guid(struct abi_device *d) { return htonl(7) + (uint64_t)(d - devices); }
int ibv_get_device_index(struct abi_device *d) { return (int)(d - devices); }

static int query_device(struct abi_context *ctx, struct abi_device_attr *a)
{
	memset(a, 0, sizeof(*a));
	strcpy(a->fw_ver, "1.0");
	a->node_guid = ibv_get_device_guid(ctx->device);
	a->max_mr_size = ~0ull;
	a->page_size_cap = 0xfffff000;
	a->max_qp = a->max_cq = a->max_mr = a->max_pd = a->max_mw = a->max_ah = a->max_srq = 1000;
	a->max_qp_wr = a->max_srq_wr = 16384;
	a->max_sge = a->max_sge_rd = a->max_srq_sge = 16;
	a->max_cqe = 65536;
	a->max_qp_rd_atom = a->max_qp_init_rd_atom = 16;
	a->atomic_cap = 1;
	a->max_mcast_grp = a->max_mcast_qp_attach = 16;
	a->max_pkeys = 1;
	a->phys_port_cnt = 1;
	return 0;
}

int ibv_query_device(struct abi_context *ctx, struct abi_device_attr *a)
{
	int err = ENTER(ibv_query_device);

	return err ? err : query_device(ctx, a);
}

static int query_device_ex(struct abi_context *ctx, const struct abi_query_device_ex_input *in,
			   struct abi_device_attr_ex *a, size_t n)
{
	int err = ENTER(query_device_ex);

	if (err)
		return err;
	if (in->comp_mask || n < sizeof(a->orig))
		return EINVAL;
	memset(a, 0, n);
	query_device(ctx, &a->orig);
	a->hca_core_clock = W(khz);
	return 0;
}

static int port(uint8_t p, struct abi_port_attr *a, size_t n)
{
	if (p != 1)
		return EINVAL;
	memset(a, 0, n);
	a->state = W(port_state);
	a->max_mtu = a->active_mtu = 5;
	a->gid_tbl_len = 4;
	a->max_msg_sz = 1 << 30;
	a->pkey_tbl_len = 1;
	a->active_width = 2;
	a->active_speed = 32;
	a->phys_state = 5;
	a->link_layer = W(link) ? (int)W(link) : 2;
	a->flags = W(port_flags);
	return 0;
}

int ibv_query_port(struct abi_context *ctx, uint8_t p, struct abi_port_attr *a)
{
	int err = ENTER(ibv_query_port);

	(void)ctx;
	return err ? err : port(p, a, 48);
}

static int query_port(struct abi_context *ctx, uint8_t p, struct abi_port_attr *a, size_t n)
{
	int err = ENTER(query_port);

	(void)ctx;
	return err ? err : port(p, a, n);
}

static const unsigned char gids[3][16] = {
	{0xfe, 0x80, [15] = 2},
	{[10] = 0xff, 0xff, 10, 9, 0, 2},
	{0xfd, 0x00, 0, 9, [15] = 2},
};

int ibv_query_gid(struct abi_context *ctx, uint8_t p, int i, union abi_gid *g)
{
	int err = ENTER(ibv_query_gid);

	(void)ctx;
	if (err)
		return minus(err);
	if (p != 1 || i < 0 || i > 3)
		return minus(EINVAL);
	memset(g, 0, sizeof(*g));
	if (i < 3)
		memcpy(g, gids[i], 16);
	return 0;
}

ssize_t _ibv_query_gid_table(struct abi_context *ctx, struct abi_gid_entry *t, size_t n, uint32_t flags, size_t size)
{
	int i, err = ENTER(_ibv_query_gid_table);

	(void)ctx;
	if (err)
		return -err;
	if (flags || size != sizeof(*t))
		return -EINVAL;
	for (i = 0; i < 3 && (size_t)i < n; i++) {
		memset(&t[i], 0, sizeof(t[i]));
		memcpy(&t[i].gid, gids[i], 16);
		t[i].gid_index = i;
		t[i].port_num = 1;
		t[i].gid_type = 2;
		t[i].ndev_ifindex = 1;
	}
	return i;
}

// A port that no device has is the loop that a program in C would write, as many rounds
// as index says.
int ibv_query_pkey(struct abi_context *ctx, uint8_t p, int i, uint16_t *k)
{
	int err = ENTER(ibv_query_pkey);

	if (p == 250)
		return bench(ctx, i);
	if (err || p != 1 || i)
		return minus(err ? err : EINVAL);
	*k = 0xffff;
	return 0;
}

static int query_rt_values(struct abi_context *ctx, struct abi_values_ex *v)
{
	int err = ENTER(query_rt_values);

	(void)ctx;
	if (err)
		return err;
	v->comp_mask &= ABI_VALUES_RAW_CLOCK;
	v->raw_clock.tv_sec = W(clock_sec);
	v->raw_clock.tv_nsec = W(clock_ticks);
	return 0;
}

// Contexts.

struct abi_context *ibv_open_device(struct abi_device *d)
{
	struct context *c;
	struct abi_context_ops *o;
	int err = ENTER(ibv_open_device);
	int64_t no = W(no_ops);

	if (err)
		return null(err);
	c = new(sizeof(*c));
	c->x.context.device = d;
	c->x.context.num_comp_vectors = 2;
	c->x.context.cmd_fd = -1;
	c->x.context.async_fd = fake_pipe(&c->wfd);
	if (c->x.context.async_fd < 0)
		return NULL;
	o = &c->x.context.ops;
	o->poll_cq = no & 1 ? NULL : poll_cq;
	o->req_notify_cq = no & 2 ? NULL : req_notify_cq;
	o->post_send = no & 4 ? NULL : post_send;
	o->post_recv = no & 8 ? NULL : post_recv;
	o->post_srq_recv = no & 16 ? NULL : post_srq_recv;
	o->alloc_mw = no & 32 ? NULL : alloc_mw;
	o->dealloc_mw = no & 64 ? NULL : dealloc_mw;
	if (W(no_extended) != 1) {
		c->x.context.abi_compat = (void *)UINTPTR_MAX;
		// 2: it ends before the operations that are used here
		c->x.sz = W(no_extended) == 2 ? sizeof(struct abi_context) + 16 : sizeof(struct abi_verbs_context);
		if (W(no_extended) != 3) { // 3: the operations are NULL
			c->x.query_port = query_port;
			c->x.modify_cq = modify_cq;
			c->x.query_rt_values = query_rt_values;
			c->x.query_device_ex = query_device_ex;
		}
		if (W(no_extended) == 2) {
			c->x.query_port = (void *)1;
			c->x.modify_cq = (void *)1;
			c->x.query_rt_values = (void *)1;
			c->x.query_device_ex = (void *)1;
		}
	}
	W(async_wfd) = c->wfd;
	W(live_ctx)++;
	return &c->x.context;
}

int ibv_close_device(struct abi_context *ctx)
{
	struct context *c = (struct context *)((char *)ctx - offsetof(struct context, x.context));
	int err = ENTER(ibv_close_device);

	if (err)
		return minus(err);
	if (!ctx->device)
		fake_violation("ibv_close_device of a closed one");
	ctx->device = NULL;
	close(ctx->async_fd);
	close(c->wfd);
	W(live_ctx)--;
	return 0;
}
