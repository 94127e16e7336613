//go:build linux && cgo

#include <arpa/inet.h>
#include <time.h>

#include "lib.h"

// ACK_BATCH is the number of events after which they are acknowledged: it takes a mutex.
#define ACK_BATCH 64

int vb_create_channel(struct abi_context *ctx, struct abi_comp_channel **ch, int *fd)
{
	int e;

	errno = 0;
	*ch = vb.ibv_create_comp_channel(ctx);
	if (!*ch)
		return vb_null();
	*fd = (*ch)->fd;
	e = vb_nonblock(*fd);
	if (e)
		vb.ibv_destroy_comp_channel(*ch);
	return e;
}

int vb_destroy_channel(struct abi_comp_channel *ch)
{
	errno = 0;
	return vb_errno(vb.ibv_destroy_comp_channel(ch));
}

int vb_channel_next(uintptr_t p, uint64_t *handle)
{
	struct abi_comp_channel *ch = (struct abi_comp_channel *)p;
	struct abi_cq *cq;
	void *context;
	struct vb_cq *c;
	int e;

	do {
		do {
			errno = 0;
			e = vb.ibv_get_cq_event(ch, &cq, &context) ? vb_null() : 0;
		} while (e == EINTR);
		// Older kernels answer EAGAIN for ever when the device is gone; the descriptor knows.
		if (e == EAGAIN)
			return vb_readable(ch->fd) == -1 ? ENODEV : EAGAIN;
		if (e)
			return e == EIO ? ENODEV : e;
		c = vb_kept(context, cq);
	} while (!c); // destroyed meanwhile: there is nothing to acknowledge
	*handle = c->handle;
	if (++c->unacked >= ACK_BATCH) {
		vb.ibv_ack_cq_events(c->cq, c->unacked);
		c->unacked = 0;
	}
	return 0;
}

int vb_create_cq(struct abi_context *ctx, struct abi_comp_channel *ch, int entries, int vector, uint64_t handle,
		 struct vb_cq **cq)
{
	struct vb_cq *c;
	int e;

	if (!ctx->ops.poll_cq || !ctx->ops.req_notify_cq)
		return VB_NO_DATA_PATH;
	c = calloc(1, sizeof(*c));
	if (!c)
		return ENOMEM;
	c->handle = handle;
	c->key = vb_keep(c);
	if (!c->key) {
		free(c);
		return ENOMEM;
	}
	errno = 0;
	c->cq = vb.ibv_create_cq(ctx, entries, c->key, ch, vector);
	if (!c->cq) {
		e = vb_null();
		vb_forget(c->key);
		free(c);
		return e;
	}
	c->entries = c->cq->cqe;
	*cq = c;
	return 0;
}

int vb_destroy_cq(struct vb_cq *c)
{
	int fd = c->cq->context->async_fd;
	int e;

	if (c->unacked) {
		vb.ibv_ack_cq_events(c->cq, c->unacked);
		c->unacked = 0;
	}
	errno = 0;
	e = vb_errno(vb.ibv_destroy_cq(c->cq));
	if (vb_over(fd, e)) {
		vb_forget(c->key);
		free(c);
	}
	return e;
}

int vb_resize_cq(struct vb_cq *c, int entries)
{
	int e;

	errno = 0;
	e = vb_errno(vb.ibv_resize_cq(c->cq, entries));
	c->entries = c->cq->cqe;
	return e;
}

int vb_modify_cq(struct vb_cq *c, uint16_t count, uint16_t period)
{
	struct abi_modify_cq_attr a = {ABI_CQ_ATTR_MODERATE, count, period};
	int (*modify)(struct abi_cq *, struct abi_modify_cq_attr *);

	modify = VB_EXTENDED(c->cq->context, modify_cq);
	if (!modify)
		return VB_NO_MODIFY_CQ;
	errno = 0;
	return vb_errno(modify(c->cq, &a));
}

// Numbers that are not of this decade's libibverbs stay what they are, unknown: nothing
// that does not fit into a byte may become a success, or a receive.
#define UNKNOWN_STATUS 255
#define UNKNOWN_OPCODE 127

static int poll_cq(struct vb_cq *c)
{
	struct abi_wc wc[VB_BATCH];
	int i, n = c->cq->context->ops.poll_cq(c->cq, VB_BATCH, wc);

	if (n < 0)
		return -EIO; // what it is differs from one device's library to the other, and is no errno
	if (n > VB_BATCH)
		n = VB_BATCH;
	for (i = 0; i < n; i++) {
		const struct abi_wc *w = &wc[i];
		struct vb_wc *to = &c->wc[i];

		to->id = w->wr_id;
		to->byte_len = w->byte_len;
		to->imm = w->wc_flags & ABI_WC_WITH_INV ? w->imm_data : ntohl(w->imm_data);
		to->qpn = w->qp_num;
		to->src_qpn = w->src_qp;
		to->vendor_err = w->vendor_err;
		to->status = (uint32_t)w->status <= UINT8_MAX ? w->status : UNKNOWN_STATUS;
		to->opcode = (uint32_t)w->opcode <= UINT8_MAX ? w->opcode : UNKNOWN_OPCODE;
		to->flags = w->wc_flags;
		to->sl = w->sl;
		to->path_bits = w->dlid_path_bits;
		to->slid = w->slid;
		to->pkey_index = w->pkey_index;
	}
	return n;
}

int vb_poll(uintptr_t p) { return poll_cq((struct vb_cq *)p); }

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

// relax tells the processor that this is a loop that waits.
static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

// POLLS_PER_CLOCK is how often the queue is looked at for each look at the clock, which
// costs as much as an empty queue.
#define POLLS_PER_CLOCK 8

int vb_poll_for(uintptr_t p, int64_t ns)
{
	struct vb_cq *c = (struct vb_cq *)p;
	int64_t end;
	int i, n = poll_cq(c);

	if (n || ns <= 0)
		return n;
	end = now() + (ns < VB_SPIN_MAX ? ns : VB_SPIN_MAX);
	do {
		relax();
		for (i = 0; i < POLLS_PER_CLOCK; i++) {
			n = poll_cq(c);
			if (n)
				return n;
		}
	} while (now() < end);
	return 0;
}

int vb_arm(uintptr_t p, int solicited)
{
	struct vb_cq *c = (struct vb_cq *)p;

	errno = 0;
	return vb_errno(c->cq->context->ops.req_notify_cq(c->cq, solicited));
}

int vb_arm_poll(uintptr_t p)
{
	int e = vb_arm(p, 0);

	return e ? VB_ARM_FAILED - e : vb_poll(p);
}
