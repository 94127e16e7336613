#include "verbs.h"

// Memory.

struct abi_pd *ibv_alloc_pd(struct abi_context *ctx)
{
	struct pd *p;
	int err = ENTER(ibv_alloc_pd);

	if (err)
		return null(err);
	p = new(sizeof(*p));
	p->pd.context = ctx;
	p->magic = MAGIC;
	W(live_pd)++;
	return &p->pd;
}

int ibv_dealloc_pd(struct abi_pd *pd)
{
	struct pd *p = (struct pd *)pd;
	int err = ENTER(ibv_dealloc_pd);

	LIVE(p, "ibv_dealloc_pd");
	if (err)
		return err;
	if (p->users)
		return EBUSY;
	p->magic = DEAD;
	W(live_pd)--;
	return 0;
}

static uint32_t key = 0x100;
static struct abi_mr *regions[1 << 16]; // by key, while they live

int known(uint32_t rkey) { return rkey < 1 << 16 && regions[rkey]; }

// Windows have keys from 0x8000 on, 256 each; bound ones are known as regions are.
static uint32_t family = 0x8000;

int bind_window(struct abi_send_wr *w)
{
	struct abi_mw *mw = w->bind_mw.mw;
	struct abi_mr *mr = w->bind_mw.bind_info.mr;
	uint32_t k = w->bind_mw.rkey;

	if (w->imm_data || w->num_sge)
		fake_violation("a bind with data");
	if (!mw->rkey || !mr->lkey)
		fake_violation("a bind of a destroyed object");
	if (known(mw->rkey) || mw->type != 2 || k >> 8 != mw->rkey >> 8 || k == mw->rkey || !w->bind_mw.bind_info.length ||
	    w->bind_mw.bind_info.addr - (uintptr_t)mr->addr > mr->length - w->bind_mw.bind_info.length)
		return 6; // MW_BIND
	regions[k] = mr;
	return 0;
}

int invalidate(uint32_t rkey)
{
	if (rkey < 0x8000 || !known(rkey))
		return 2; // LOC_QP_OP
	regions[rkey] = NULL;
	return 0;
}

static struct abi_mr *reg(struct abi_pd *pd, void *addr, size_t n, int err)
{
	struct abi_mr *m;

	LIVE((struct pd *)pd, "registration");
	if (err)
		return null(err);
	m = new(sizeof(*m));
	m->context = pd->context;
	m->pd = pd;
	m->addr = addr;
	m->length = n;
	m->lkey = m->rkey = key++;
	regions[m->lkey % (1 << 16)] = m;
	((struct pd *)pd)->users++;
	W(live_mr)++;
	return m;
}

struct abi_mr *ibv_reg_mr(struct abi_pd *pd, void *a, size_t n, int access)
{
	int err = ENTER(ibv_reg_mr);

	if ((unsigned)access & ABI_ACCESS_OPTIONAL)
		fake_violation("ibv_reg_mr with optional rights");
	return reg(pd, a, n, err);
}

struct abi_mr *ibv_reg_mr_iova(struct abi_pd *pd, void *a, size_t n, uint64_t iova, int access)
{
	(void)iova, (void)access;
	return reg(pd, a, n, ENTER(ibv_reg_mr_iova));
}

struct abi_mr *ibv_reg_mr_iova2(struct abi_pd *pd, void *a, size_t n, uint64_t iova, unsigned int access)
{
	(void)iova, (void)access;
	return reg(pd, a, n, ENTER(ibv_reg_mr_iova2));
}

struct abi_mr *ibv_reg_dmabuf_mr(struct abi_pd *pd, uint64_t off, size_t n, uint64_t iova, int fd, int access)
{
	(void)off, (void)iova, (void)access;
	return reg(pd, NULL, n, fd < 0 ? EBADF : ENTER(ibv_reg_dmabuf_mr));
}

int ibv_dereg_mr(struct abi_mr *m)
{
	int err = ENTER(ibv_dereg_mr);

	if (err)
		return err;
	if (!m->lkey)
		fake_violation("ibv_dereg_mr of a destroyed object");
	regions[m->lkey % (1 << 16)] = NULL;
	m->lkey = 0;
	((struct pd *)m->pd)->users--;
	W(live_mr)--;
	return 0;
}

struct abi_mw *alloc_mw(struct abi_pd *pd, int32_t type)
{
	struct abi_mw *w;
	int err = ENTER(alloc_mw);

	if (err)
		return null(err);
	w = new(sizeof(*w));
	w->context = pd->context;
	w->pd = pd;
	w->type = type;
	w->rkey = family;
	family = family == 0xff00 ? 0x8000 : family + 0x100;
	((struct pd *)pd)->users++;
	W(live_mw)++;
	return w;
}

int dealloc_mw(struct abi_mw *w)
{
	int err = ENTER(dealloc_mw);

	if (err)
		return err;
	if (!w->rkey)
		fake_violation("dealloc_mw of a destroyed object");
	regions[w->rkey] = NULL;
	w->rkey = 0;
	((struct pd *)w->pd)->users--;
	W(live_mw)--;
	return 0;
}

struct abi_ah *ibv_create_ah(struct abi_pd *pd, struct abi_ah_attr *a)
{
	struct abi_ah *h;
	int err = ENTER(ibv_create_ah);

	if (err || !a->is_global)
		return null(err ? err : EINVAL);
	h = new(sizeof(*h));
	h->context = pd->context;
	h->pd = pd;
	h->handle = MAGIC;
	((struct pd *)pd)->users++;
	W(live_ah)++;
	return h;
}

int ibv_destroy_ah(struct abi_ah *h)
{
	int err = ENTER(ibv_destroy_ah);

	if (err)
		return err;
	if (h->handle != MAGIC)
		fake_violation("ibv_destroy_ah of a destroyed object");
	h->handle = DEAD;
	((struct pd *)h->pd)->users--;
	W(live_ah)--;
	return 0;
}

