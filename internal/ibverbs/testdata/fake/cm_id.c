#include "manager.h"

struct id *create(struct abi_event_channel *ch, void *context, int ps)
{
	struct id *v = new(sizeof(*v));

	v->magic = MAGIC;
	v->id.channel = ch;
	v->id.context = context;
	v->id.ps = ps;
	v->id.qp_type = ps == 0x0111 || ps == 2 ? ABI_QPT_UD : 2;
	v->next = ids;
	ids = v;
	W(live_ids)++;
	return v;
}

int rdma_create_id(struct abi_event_channel *ch, struct abi_cm_id **id, void *context, int ps)
{
	int err = ENTER(rdma_create_id);

	TABLE();
	if (err)
		return minus(err);
	pthread_mutex_lock(&mu);
	*id = &create(ch, context, ps)->id;
	pthread_mutex_unlock(&mu);
	return 0;
}

// drop takes the events of an id that nobody fetched away; their bytes stay.
static void drop(struct id *v)
{
	struct event **p, *e;

	for (p = &((struct channel *)v->id.channel)->first; (e = *p);) {
		if (e->of != v) {
			p = &e->next;
			continue;
		}
		*p = e->next;
		if (e->e.event == ABI_CM_CONNECT_REQUEST) {
			struct id *child = (struct id *)e->e.id;

			child->magic = DEAD;
			W(live_ids)--;
		}
	}
}

int rdma_destroy_id(struct abi_cm_id *id)
{
	struct id *v = (struct id *)id;
	struct group *g;
	int err = ENTER(rdma_destroy_id);

	TABLE();
	LIVE(v, "rdma_destroy_id");
	if (err)
		return minus(err);
	pthread_mutex_lock(&mu);
	if (v->fetched != v->acked)
		fake_violation("rdma_destroy_id hangs: %u of %u events acknowledged", v->acked, v->fetched);
	drop(v);
	if (v->peer && v->peer->magic == MAGIC) {
		v->peer->peer = NULL;
		if (v->state == CONNECTED)
			emit(v->peer, 10, 0);
		else if (v->state == REQUEST)
			emit(v->peer, 8, 28);
	}
	for (g = v->groups; g; g = g->next)
		W(live_groups)--;
	v->magic = DEAD;
	W(live_ids)--;
	pthread_mutex_unlock(&mu);
	return 0;
}

static int is_device(const union abi_sockaddr *a)
{
	if (a->any.sa_family == AF_INET)
		return ntohl(a->in.sin_addr.s_addr) == 0x0a090002;
	return a->in6.sin6_addr.s6_addr[0] == 0xfd;
}

static int bindable(struct id *v, struct sockaddr *a)
{
	union abi_sockaddr s;

	memset(&s, 0, sizeof(s));
	memcpy(&s, a, a->sa_family == AF_INET ? sizeof(s.in) : sizeof(s.in6));
	if (is_device(&s)) {
		v->id.verbs = context(0);
		v->id.port_num = 1;
	} else if (s.any.sa_family == AF_INET ? s.in.sin_addr.s_addr != 0 : s.in6.sin6_addr.s6_addr[15] != 0) {
		return EADDRNOTAVAIL;
	}
	if (!s.in.sin_port)
		s.in.sin_port = htons(++ports * 2);
	v->id.route.src = s;
	v->state = BOUND;
	return 0;
}

int rdma_bind_addr(struct abi_cm_id *id, struct sockaddr *a)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_bind_addr);

	LIVE(v, "rdma_bind_addr");
	return minus(err ? err : bindable(v, a));
}

int rdma_resolve_addr(struct abi_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int ms)
{
	struct id *v = (struct id *)id;
	union abi_sockaddr *d = &id->route.dst;
	int group, err = ENTER(rdma_resolve_addr);

	(void)ms;
	LIVE(v, "rdma_resolve_addr");
	if (!err && src)
		err = bindable(v, src);
	if (err)
		return minus(err);
	memset(d, 0, sizeof(*d));
	memcpy(d, dst, dst->sa_family == AF_INET ? sizeof(d->in) : sizeof(d->in6));
	group = d->any.sa_family == AF_INET && (ntohl(d->in.sin_addr.s_addr) >> 28) == 14;
	pthread_mutex_lock(&mu);
	if (is_device(d) || group)
		emit(v, 0, 0);
	else
		emit(v, 1, -EHOSTUNREACH);
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_resolve_route(struct abi_cm_id *id, int ms)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_resolve_route);

	(void)ms;
	DEVICE(v, "rdma_resolve_route");
	if (err)
		return minus(err);
	pthread_mutex_lock(&mu);
	emit(v, 2, 0);
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_listen(struct abi_cm_id *id, int backlog)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_listen);

	(void)backlog;
	LIVE(v, "rdma_listen");
	if (err)
		return minus(err);
	v->state = LISTENING;
	return 0;
}

int rdma_set_option(struct abi_cm_id *id, int level, int name, void *p, size_t n)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_set_option);

	LIVE(v, "rdma_set_option");
	if (!err && level == 0 && name == 3 && n == 1)
		v->timeout = *(uint8_t *)p;
	return minus(err);
}

int rdma_migrate_id(struct abi_cm_id *id, struct abi_event_channel *to)
{
	struct id *v = (struct id *)id;
	struct event **p, **q, *e;
	int err = ENTER(rdma_migrate_id);

	TABLE();
	LIVE(v, "rdma_migrate_id");
	if (err)
		return minus(err);
	if (v->fetched != v->acked)
		fake_violation("rdma_migrate_id hangs: %u of %u events acknowledged", v->acked, v->fetched);
	pthread_mutex_lock(&mu);
	for (q = &((struct channel *)to)->first; *q; q = &(*q)->next)
		;
	for (p = &((struct channel *)id->channel)->first; (e = *p);) {
		if (e->of != v) {
			p = &e->next;
			continue;
		}
		*p = e->next;
		e->next = NULL;
		*q = e;
		q = &e->next;
		if (write(((struct channel *)to)->wfd, "", 1) != 1)
			fake_violation("too many events");
	}
	id->channel = to;
	pthread_mutex_unlock(&mu);
	return 0;
}
