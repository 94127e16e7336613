#include "manager.h"

#include <sched.h>

struct abi_device **ibv_get_device_list(int *n);
struct abi_context *ibv_open_device(struct abi_device *d);

pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
struct id *ids;
int ports = 1000;
static struct abi_context *contexts[4];

__attribute__((constructor)) static void begin(void)
{
#define X(f) strcpy(fake->fn[F_##f].name, #f);
	FNS(X)
#undef X
}

void *new(size_t n)
{
	void *p = calloc(1, n);

	if (!p)
		abort();
	return p;
}

int minus(int e)
{
	if (!e)
		return 0;
	errno = e;
	return -1;
}

static int inside;

int table_enter(const char *what)
{
	if (__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST) != 1)
		fake_violation("%s at the same time as another call that uses the table of ids", what);
	sched_yield();
	return 1;
}

void table_leave(int *entered)
{
	(void)entered;
	__atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
}

struct abi_context *context(int i)
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

struct event *emit(struct id *v, int type, int status)
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

void conn(struct event *e, const struct abi_conn_param *p, int n)
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
