#include "fake.h"

#include <arpa/inet.h>
#include <sched.h>

#define FNS(X) \
	X(rdma_create_event_channel) X(rdma_create_id) X(rdma_destroy_id) X(rdma_bind_addr) X(rdma_resolve_addr) \
	X(rdma_resolve_route) X(rdma_connect) X(rdma_listen) X(rdma_accept) X(rdma_reject) X(rdma_notify) X(rdma_disconnect) \
	X(rdma_get_cm_event) X(rdma_ack_cm_event) X(rdma_get_devices) X(rdma_free_devices) X(rdma_set_option) \
	X(rdma_migrate_id) X(rdma_join_multicast) X(rdma_leave_multicast) X(rdma_join_multicast_ex) X(rdma_establish) \
	X(rdma_init_qp_attr)

enum {
	F_begin = FAKE_FNS_N / 2 - 1,
#define X(f) F_##f,
	FNS(X)
#undef X
};

#define ENTER(f) fake_enter(F_##f)

struct abi_device **ibv_get_device_list(int *n);
struct abi_context *ibv_open_device(struct abi_device *d);

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct abi_context *contexts[4];
static int ports = 1000;

__attribute__((constructor)) static void begin(void)
{
#define X(f) strcpy(fake->fn[F_##f].name, #f);
	FNS(X)
#undef X
}

enum { IDLE, BOUND, LISTENING, RESOLVED, ROUTED, ASKED, REQUEST, ANSWERED, CONNECTED, OVER };

struct group {
	union abi_sockaddr addr;
	void *context;
	uint32_t fetched, acked;
	struct group *next;
};

struct id {
	struct abi_cm_id id;
	uint32_t magic;
	int state, timeout;
	uint32_t fetched, acked;
	struct id *peer, *listener, *next;
	struct abi_conn_param theirs;
	struct group *groups;
};

struct event {
	struct abi_cm_event e;
	uint32_t magic;
	struct id *of; // whose acknowledgement counts
	struct group *group;
	unsigned char data[256];
	struct event *next;
};

struct channel {
	struct abi_event_channel c;
	uint32_t magic;
	int wfd;
	struct event *first;
};

static struct id *ids;

static void *new(size_t n)
{
	void *p = calloc(1, n);

	if (!p)
		abort();
	return p;
}

static int minus(int e)
{
	if (!e)
		return 0;
	errno = e;
	return -1;
}

#define LIVE(o, what) \
	do { \
		if ((o)->magic != MAGIC) \
			fake_violation("%s of a destroyed object", what); \
	} while (0)

// The real library follows NULL here.
#define DEVICE(v, what) \
	do { \
		LIVE(v, what); \
		if (!(v)->id.verbs) { \
			fake_violation("%s of an id without a device crashes", what); \
			return minus(EINVAL); \
		} \
	} while (0)

// The real library's table of ids is not safe where these functions run at once.
static int inside;

static int table_enter(const char *what)
{
	if (__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST) != 1)
		fake_violation("%s at the same time as another call that uses the table of ids", what);
	sched_yield();
	return 1;
}

static void table_leave(int *entered)
{
	(void)entered;
	__atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
}

#define TABLE() int table __attribute__((cleanup(table_leave), unused)) = table_enter(__func__)

static struct abi_context *context(int i)
{
	int n;

	if (!contexts[i])
		contexts[i] = ibv_open_device(ibv_get_device_list(&n)[i]);
	return contexts[i];
}

struct abi_context **rdma_get_devices(int *n)
{
	struct abi_context **l;
	int i, k, err = ENTER(rdma_get_devices);

	if (err) {
		errno = err;
		return NULL;
	}
	free(ibv_get_device_list(&k));
	l = new((k + 1) * sizeof(*l));
	for (*n = i = 0; i < k; i++)
		if (context(i))
			l[(*n)++] = contexts[i];
	W(live_lists)++;
	return l;
}

void rdma_free_devices(struct abi_context **l)
{
	fake_enter(F_rdma_free_devices);
	free(l);
	W(live_lists)--;
}

struct abi_event_channel *rdma_create_event_channel(void)
{
	struct channel *ch;
	int err = ENTER(rdma_create_event_channel);

	if (!err && !W(devices))
		err = ENODEV;
	if (err) {
		errno = err;
		return NULL;
	}
	ch = new(sizeof(*ch));
	ch->magic = MAGIC;
	ch->c.fd = fake_pipe(&ch->wfd);
	W(cm_wfd) = ch->wfd;
	W(live_cmchan)++;
	return &ch->c;
}

void rdma_destroy_event_channel(struct abi_event_channel *c)
{
	struct channel *ch = (struct channel *)c;
	struct id *v;

	LIVE(ch, "rdma_destroy_event_channel");
	for (v = ids; v; v = v->next)
		if (v->magic == MAGIC && v->id.channel == c && v->fetched == v->acked)
			fake_violation("rdma_destroy_event_channel with an id");
	ch->magic = DEAD;
	close(c->fd);
	close(ch->wfd);
	W(live_cmchan)--;
}

static struct event *emit(struct id *v, int type, int status)
{
	struct channel *ch = (struct channel *)v->id.channel;
	struct event *e = new(sizeof(*e)), **p;

	e->magic = MAGIC;
	e->e.id = &v->id;
	e->e.event = type;
	e->e.status = status;
	e->of = v;
	for (p = &ch->first; *p; p = &(*p)->next)
		;
	*p = e;
	if (write(ch->wfd, "", 1) != 1)
		fake_violation("too many events");
	return e;
}

static void conn(struct event *e, const struct abi_conn_param *p, int n)
{
	struct abi_conn_param *c = &e->e.param.conn;

	*c = *p;
	c->responder_resources = p->initiator_depth;
	c->initiator_depth = p->responder_resources;
	if (p->private_data_len)
		memcpy(e->data, p->private_data, p->private_data_len);
	c->private_data = e->data;
	c->private_data_len = n;
}

static struct id *create(struct abi_event_channel *ch, void *context, int ps)
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

int rdma_connect(struct abi_cm_id *id, struct abi_conn_param *p)
{
	struct id *v = (struct id *)id, *l, *child;
	struct event *e;
	int err = ENTER(rdma_connect);

	DEVICE(v, "rdma_connect");
	if (err || p->private_data_len > 56)
		return minus(err ? err : EINVAL);
	pthread_mutex_lock(&mu);
	for (l = ids; l; l = l->next)
		if (l->magic == MAGIC && l->state == LISTENING && l->id.route.src.in.sin_port == id->route.dst.in.sin_port)
			break;
	if (!l) {
		emit(v, 8, 8);
		pthread_mutex_unlock(&mu);
		return 0;
	}
	child = create(l->id.channel, l->id.context, l->id.ps);
	child->id.verbs = context(0);
	child->id.port_num = 1;
	child->id.route.src = l->id.route.src;
	child->id.route.dst = id->route.src;
	child->state = REQUEST;
	child->listener = l;
	child->peer = v;
	v->peer = child;
	v->state = ASKED;
	child->theirs = *p;
	e = emit(l, ABI_CM_CONNECT_REQUEST, 0);
	e->e.id = &child->id;
	e->e.listen_id = &l->id;
	conn(e, p, 56);
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_accept(struct abi_cm_id *id, struct abi_conn_param *p)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_accept);

	DEVICE(v, "rdma_accept");
	if (!p)
		fake_violation("rdma_accept without parameters crashes");
	if (!err && (v->state != REQUEST || !v->peer || v->peer->magic != MAGIC))
		err = EINVAL;
	if (err)
		return minus(err);
	pthread_mutex_lock(&mu);
	v->state = ANSWERED;
	v->peer->theirs = *p;
	conn(emit(v->peer, 5, 0), p, 196);
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_reject(struct abi_cm_id *id, const void *p, uint8_t n)
{
	struct id *v = (struct id *)id;
	struct abi_conn_param c = {.private_data = p, .private_data_len = n};
	int err = ENTER(rdma_reject);

	DEVICE(v, "rdma_reject");
	if (!err && (!v->peer || n > 148))
		err = EINVAL;
	if (err)
		return minus(err);
	pthread_mutex_lock(&mu);
	v->state = OVER;
	conn(emit(v->peer, 8, 28), &c, 148);
	v->peer->peer = NULL;
	v->peer = NULL;
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_establish(struct abi_cm_id *id)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_establish);

	DEVICE(v, "rdma_establish");
	if (err || !v->peer)
		return minus(err ? err : EINVAL);
	pthread_mutex_lock(&mu);
	v->state = v->peer->state = CONNECTED;
	emit(v->peer, 9, 0);
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_notify(struct abi_cm_id *id, int ev)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_notify);

	(void)ev;
	DEVICE(v, "rdma_notify");
	return minus(err ? err : v->state == CONNECTED ? EISCONN : 0);
}

int rdma_disconnect(struct abi_cm_id *id)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_disconnect);

	DEVICE(v, "rdma_disconnect");
	if (err)
		return minus(err);
	pthread_mutex_lock(&mu);
	if (v->state == CONNECTED) {
		v->state = OVER;
		emit(v, 10, 0);
		if (v->peer && v->peer->state == CONNECTED) {
			v->peer->state = OVER;
			emit(v->peer, 10, 0);
		}
	}
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_init_qp_attr(struct abi_cm_id *id, struct abi_qp_attr *a, int *mask)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_init_qp_attr);

	DEVICE(v, "rdma_init_qp_attr");
	if (err)
		return minus(err);
	a->port_num = 1;
	switch (a->qp_state) {
	case 1:
		*mask = 1 | 1 << 3 | 1 << 4 | 1 << 5;
		if (id->qp_type == ABI_QPT_UD)
			*mask = 1 | 1 << 4 | 1 << 5 | 1 << 6;
		break;
	case 2:
		a->dest_qp_num = v->theirs.qp_num;
		a->path_mtu = 5;
		a->max_dest_rd_atomic = v->theirs.initiator_depth;
		a->ah_attr.is_global = 1;
		a->ah_attr.grh.dgid.raw[10] = a->ah_attr.grh.dgid.raw[11] = 0xff;
		memcpy(a->ah_attr.grh.dgid.raw + 12, "\x0a\x09\x00\x02", 4);
		a->ah_attr.grh.sgid_index = 1;
		a->ah_attr.grh.hop_limit = 64;
		a->ah_attr.port_num = 1;
		*mask = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
		break;
	case 3:
		a->timeout = v->timeout ? v->timeout : 18;
		a->retry_cnt = v->state == ASKED ? 5 : v->theirs.retry_count;
		a->rnr_retry = 7;
		a->max_rd_atomic = v->theirs.responder_resources;
		*mask = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
		break;
	}
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

static int join(struct id *v, struct sockaddr *a, void *context)
{
	struct group *g = new(sizeof(*g));
	struct event *e;

	memcpy(&g->addr, a, a->sa_family == AF_INET ? sizeof(g->addr.in) : sizeof(g->addr.in6));
	g->context = context;
	g->next = v->groups;
	v->groups = g;
	W(live_groups)++;
	pthread_mutex_lock(&mu);
	e = emit(v, ABI_CM_MULTICAST_JOIN, 0);
	e->group = g;
	e->e.param.ud.private_data = context;
	e->e.param.ud.qp_num = 0xffffff;
	e->e.param.ud.qkey = 0x01234567;
	e->e.param.ud.ah_attr.grh.dgid.raw[0] = 0xff;
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_join_multicast(struct abi_cm_id *id, struct sockaddr *a, void *context)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_join_multicast);

	DEVICE(v, "rdma_join_multicast");
	return minus(err ? err : join(v, a, context));
}

int rdma_join_multicast_ex(struct abi_cm_id *id, struct abi_join_mc_attr_ex *a, void *context)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_join_multicast_ex);

	DEVICE(v, "rdma_join_multicast_ex");
	return minus(err ? err : join(v, a->addr, context));
}

int rdma_leave_multicast(struct abi_cm_id *id, struct sockaddr *a)
{
	struct id *v = (struct id *)id;
	struct group **p, *g;
	int err = ENTER(rdma_leave_multicast);

	DEVICE(v, "rdma_leave_multicast");
	for (p = &v->groups; !err && (g = *p); p = &g->next)
		if (!memcmp(&g->addr, a, a->sa_family == AF_INET ? sizeof(g->addr.in) : sizeof(g->addr.in6)))
			break;
	if (!err && !*p)
		err = EADDRNOTAVAIL;
	if (err)
		return minus(err);
	if (g->fetched != g->acked)
		fake_violation("rdma_leave_multicast hangs: %u of %u events acknowledged", g->acked, g->fetched);
	*p = g->next;
	W(live_groups)--;
	return 0;
}

int rdma_get_cm_event(struct abi_event_channel *c, struct abi_cm_event **out)
{
	struct channel *ch = (struct channel *)c;
	struct event *e;
	ssize_t n;
	char b;
	int err = ENTER(rdma_get_cm_event);

	TABLE();
	LIVE(ch, "rdma_get_cm_event");
	if (err)
		return minus(err);
	for (;;) {
		n = read(c->fd, &b, 1);
		if (n == 0)
			return minus(EIO);
		if (n < 0)
			return -1;
		pthread_mutex_lock(&mu);
		e = ch->first;
		if (b && !e && ids) { // the test asks for one more of the newest id: b is its type
			struct id *v = ids;

			e = new(sizeof(*e));
			e->magic = MAGIC;
			e->e.id = &v->id;
			e->e.event = b;
			e->of = v;
			break;
		}
		if (!e) {
			pthread_mutex_unlock(&mu);
			continue; // of an id that was destroyed: the library drops it
		}
		ch->first = e->next;
		if (e->e.event == ABI_CM_CONNECT_REQUEST && W(drop_request)) {
			struct id *child = (struct id *)e->e.id;

			W(drop_request)--; // no memory for its id: the library drops it
			child->magic = DEAD;
			W(live_ids)--;
			pthread_mutex_unlock(&mu);
			continue;
		}
		break;
	}
	if (e->e.event == 0 && !W(no_verbs)) {
		e->e.id->verbs = context(0);
		e->e.id->port_num = 1;
		if (!e->e.id->route.src.any.sa_family) {
			if (e->e.id->route.dst.any.sa_family == AF_INET) {
				e->e.id->route.src.in.sin_family = AF_INET;
				e->e.id->route.src.in.sin_addr.s_addr = htonl(0x0a090002);
			} else {
				e->e.id->route.src = e->e.id->route.dst;
			}
			e->e.id->route.src.in.sin_port = htons(++ports * 2);
		}
	}
	if (e->group)
		e->group->fetched++;
	else
		e->of->fetched++;
	W(live_events)++;
	*out = &e->e;
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_ack_cm_event(struct abi_cm_event *ev)
{
	struct event *e = (struct event *)ev;
	int err = ENTER(rdma_ack_cm_event);

	if (err)
		return minus(err);
	if (!ev || e->magic != MAGIC) {
		fake_violation("rdma_ack_cm_event twice, or of no event");
		return minus(EINVAL);
	}
	e->magic = DEAD;
	memset(e->data, 0xdd, sizeof(e->data)); // what was not copied is gone
	if (e->group)
		e->group->acked++;
	else
		e->of->acked++;
	W(live_events)--;
	return 0;
}
