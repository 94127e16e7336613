#include "verbs.h"

// Events.

void emit(struct cq *q)
{
	struct comp_event e = {q, 0};
	struct channel *ch = (struct channel *)q->cq.channel;

	q->armed = 0;
	if (ch && write(ch->wfd, &e, sizeof(e)) != sizeof(e))
		fake_violation("too many events");
}

void async(struct abi_context *ctx, int type, void *element)
{
	struct context *c = (struct context *)((char *)ctx - offsetof(struct context, x.context));
	struct abi_async_event e;

	memset(&e, 0, sizeof(e));
	e.element.cq = element;
	e.event_type = type;
	if (write(c->wfd, &e, sizeof(e)) != sizeof(e))
		fake_violation("too many events");
}

int ibv_get_cq_event(struct abi_comp_channel *ch, struct abi_cq **cq, void **context)
{
	struct comp_event e;
	ssize_t n;
	int err = ENTER(ibv_get_cq_event);

	LIVE((struct channel *)ch, "ibv_get_cq_event");
	if (err)
		return minus(err);
	for (;;) {
		n = read(ch->fd, &e, sizeof(e));
		if (n == 0)
			return minus(EIO);
		if (n < 0)
			return -1;
		if (e.cq->magic == MAGIC || e.forced)
			break;
	}
	e.cq->fetched++;
	*cq = &e.cq->cq;
	*context = e.cq->cq.cq_context;
	return 0;
}

void ibv_ack_cq_events(struct abi_cq *cq, unsigned int n)
{
	struct cq *q = (struct cq *)cq;

	fake_enter(F_ibv_ack_cq_events);
	LIVE(q, "ibv_ack_cq_events");
	q->acked += n;
	if (n == 0 || q->acked > q->fetched)
		fake_violation("ibv_ack_cq_events: %u acknowledged, %u fetched", q->acked, q->fetched);
}

// counts gives where the events of an object are counted, and whether it lives.
static uint32_t *counts(const struct abi_async_event *e, uint32_t *magic)
{
	switch (e->event_type) {
	case ABI_EVENT_CQ_ERR:
		*magic = ((struct cq *)e->element.cq)->magic;
		return &((struct cq *)e->element.cq)->async_fetched;
	case ABI_EVENT_SRQ_ERR:
	case ABI_EVENT_SRQ_LIMIT_REACHED:
		*magic = ((struct srq *)e->element.srq)->magic;
		return &((struct srq *)e->element.srq)->fetched;
	case ABI_EVENT_QP_FATAL:
	case ABI_EVENT_QP_REQ_ERR:
	case ABI_EVENT_QP_ACCESS_ERR:
	case ABI_EVENT_COMM_EST:
	case ABI_EVENT_SQ_DRAINED:
	case ABI_EVENT_PATH_MIG:
	case ABI_EVENT_PATH_MIG_ERR:
	case ABI_EVENT_QP_LAST_WQE_REACHED:
		*magic = ((struct qp *)e->element.qp)->magic;
		return &((struct qp *)e->element.qp)->fetched;
	}
	return NULL;
}

int ibv_get_async_event(struct abi_context *ctx, struct abi_async_event *e)
{
	uint32_t *n, magic;
	ssize_t r;
	int err = ENTER(ibv_get_async_event);

	if (err)
		return minus(err);
	do {
		r = read(ctx->async_fd, e, sizeof(*e));
		if (r == 0)
			return minus(EIO);
		if (r < 0)
			return -1;
		n = counts(e, &magic);
	} while (n && magic != MAGIC); // events of what is destroyed go with it
	if (n)
		n[0]++;
	return 0;
}

void ibv_ack_async_event(struct abi_async_event *e)
{
	uint32_t magic = MAGIC, *n = counts(e, &magic);

	fake_enter(F_ibv_ack_async_event);
	if (magic != MAGIC)
		fake_violation("ibv_ack_async_event of a destroyed object");
	if (n && ++n[1] > n[0])
		fake_violation("ibv_ack_async_event: %u acknowledged, %u fetched", n[1], n[0]);
}

// Completions.

struct abi_comp_channel *ibv_create_comp_channel(struct abi_context *ctx)
{
	struct channel *ch;
	int err = ENTER(ibv_create_comp_channel);

	if (err)
		return null(err);
	ch = new(sizeof(*ch));
	ch->c.context = ctx;
	ch->c.fd = fake_pipe(&ch->wfd);
	ch->magic = MAGIC;
	W(comp_wfd) = ch->wfd;
	W(live_chan)++;
	return &ch->c;
}

int ibv_destroy_comp_channel(struct abi_comp_channel *c)
{
	struct channel *ch = (struct channel *)c;
	int err = ENTER(ibv_destroy_comp_channel);

	LIVE(ch, "ibv_destroy_comp_channel");
	if (err)
		return err;
	if (c->refcnt)
		return EBUSY;
	ch->magic = DEAD;
	close(c->fd);
	close(ch->wfd);
	W(live_chan)--;
	return 0;
}

struct abi_cq *ibv_create_cq(struct abi_context *ctx, int n, void *context, struct abi_comp_channel *ch, int vector)
{
	struct cq *q;
	int err = ENTER(ibv_create_cq);

	if (err || n < 1 || vector < 0 || vector >= ctx->num_comp_vectors)
		return null(err ? err : EINVAL);
	q = new(sizeof(*q));
	q->magic = MAGIC;
	q->cq.context = ctx;
	q->cq.channel = ch;
	q->cq.cq_context = context;
	q->cq.cqe = n;
	q->size = n;
	q->wc = new(n * sizeof(*q->wc));
	if (ch)
		ch->refcnt++;
	W(live_cq)++;
	return &q->cq;
}

int ibv_destroy_cq(struct abi_cq *cq)
{
	struct cq *q = (struct cq *)cq;
	int err = ENTER(ibv_destroy_cq);

	LIVE(q, "ibv_destroy_cq");
	if (err)
		return err;
	if (q->users)
		return EBUSY;
	if (q->fetched != q->acked || q->async_fetched != q->async_acked)
		fake_violation("ibv_destroy_cq hangs: %u of %u events acknowledged, %u of %u asynchronous ones", q->acked,
			       q->fetched, q->async_acked, q->async_fetched);
	q->magic = DEAD;
	if (cq->channel)
		cq->channel->refcnt--;
	W(live_cq)--;
	return 0;
}

int ibv_resize_cq(struct abi_cq *cq, int n)
{
	struct cq *q = (struct cq *)cq;
	struct abi_wc *wc;
	uint32_t i;
	int err = ENTER(ibv_resize_cq);

	if (err || n < (int)q->n)
		return err ? err : EINVAL;
	wc = new(n * sizeof(*wc));
	for (i = 0; i < q->n; i++)
		wc[i] = q->wc[(q->head + i) % q->size];
	q->wc = wc;
	q->head = 0;
	q->size = cq->cqe = n;
	return 0;
}

int modify_cq(struct abi_cq *cq, struct abi_modify_cq_attr *a)
{
	int err = ENTER(modify_cq);

	(void)cq;
	return err ? err : a->attr_mask == ABI_CQ_ATTR_MODERATE ? 0 : EINVAL;
}

void push(struct cq *q, const struct abi_wc *w, int solicited)
{
	struct abi_wc *to;

	if (q->broken)
		return;
	if (q->n == q->size) {
		q->broken = 1;
		async(q->cq.context, ABI_EVENT_CQ_ERR, q);
		return;
	}
	to = &q->wc[(q->head + q->n++) % q->size];
	*to = *w;
	if (W(wc_status) || W(wc_opcode)) {
		to->status = W(wc_status);
		to->opcode = W(wc_opcode);
		W(wc_status) = W(wc_opcode) = 0;
	}
	if (q->armed == 1 || (q->armed == 2 && (solicited || to->status)))
		emit(q);
}

int poll_cq(struct abi_cq *cq, int n, struct abi_wc *wc)
{
	struct cq *q = (struct cq *)cq;
	int i;

	W(polls)++;
	if (W(poll_ret))
		return (int)W(poll_ret);
	LIVE(q, "poll_cq");
	pthread_mutex_lock(&mu);
	for (i = 0; i < n && q->n; i++) {
		wc[i] = q->wc[q->head];
		q->head = q->head + 1 == q->size ? 0 : q->head + 1;
		q->n--;
	}
	pthread_mutex_unlock(&mu);
	return i;
}

int req_notify_cq(struct abi_cq *cq, int solicited)
{
	struct cq *q = (struct cq *)cq;
	int err = ENTER(req_notify_cq);

	LIVE(q, "req_notify_cq");
	if (err)
		return err;
	pthread_mutex_lock(&mu);
	q->armed = solicited && q->armed != 1 ? 2 : 1;
	pthread_mutex_unlock(&mu);
	return 0;
}

