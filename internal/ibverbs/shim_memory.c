//go:build linux && cgo

#include "lib.h"

int vb_alloc_pd(struct abi_context *ctx, struct abi_pd **pd)
{
	errno = 0;
	*pd = vb.ibv_alloc_pd(ctx);
	return *pd ? 0 : vb_null();
}

int vb_dealloc_pd(struct abi_pd *pd)
{
	errno = 0;
	return vb_errno(vb.ibv_dealloc_pd(pd));
}

// reg picks the oldest call that can say what is wanted. Optional rights are hints: where
// the library cannot pass them on they are left out.
static struct abi_mr *reg(struct abi_pd *pd, void *addr, size_t n, uint64_t iova, uint32_t access)
{
	int plain = iova == (uintptr_t)addr;

	if ((access & ABI_ACCESS_OPTIONAL) && vb.ibv_reg_mr_iova2)
		return vb.ibv_reg_mr_iova2(pd, addr, n, iova, access);
	access &= ~ABI_ACCESS_OPTIONAL;
	if (plain)
		return vb.ibv_reg_mr(pd, addr, n, (int)access);
	if (vb.ibv_reg_mr_iova2)
		return vb.ibv_reg_mr_iova2(pd, addr, n, iova, access);
	if (vb.ibv_reg_mr_iova)
		return vb.ibv_reg_mr_iova(pd, addr, n, iova, (int)access);
	errno = VB_NO_IOVA;
	return NULL;
}

static int keys(struct abi_mr *mr, struct abi_mr **to, uint32_t *lkey, uint32_t *rkey)
{
	*to = mr;
	if (!mr)
		return vb_null();
	*lkey = mr->lkey;
	*rkey = mr->rkey;
	return 0;
}

int vb_reg_mr(struct abi_pd *pd, uintptr_t addr, size_t n, uint64_t iova, uint32_t access, struct abi_mr **mr,
	      uint32_t *lkey, uint32_t *rkey)
{
	errno = 0;
	return keys(reg(pd, (void *)addr, n, iova, access), mr, lkey, rkey);
}

int vb_reg_dmabuf(struct abi_pd *pd, uint64_t off, size_t n, uint64_t iova, int fd, uint32_t access,
		  struct abi_mr **mr, uint32_t *lkey, uint32_t *rkey)
{
	if (!vb.ibv_reg_dmabuf_mr)
		return VB_NO_DMABUF;
	errno = 0;
	return keys(vb.ibv_reg_dmabuf_mr(pd, off, n, iova, fd, (int)access), mr, lkey, rkey);
}

int vb_dereg_mr(struct abi_mr *mr)
{
	errno = 0;
	return vb_errno(vb.ibv_dereg_mr(mr));
}

int vb_alloc_mw(struct abi_pd *pd, int type, struct abi_mw **mw)
{
	const struct abi_context_ops *ops = &pd->context->ops;

	if (!ops->alloc_mw || !ops->dealloc_mw)
		return VB_NO_MW;
	errno = 0;
	*mw = ops->alloc_mw(pd, type);
	return *mw ? 0 : vb_null();
}

uint32_t vb_mw_rkey(struct abi_mw *mw) { return mw->rkey; }

int vb_dealloc_mw(struct abi_mw *mw)
{
	errno = 0;
	return vb_errno(mw->context->ops.dealloc_mw(mw));
}

void vb_ah_in(struct abi_ah_attr *to, const struct vb_ah_attr *from)
{
	memset(to, 0, sizeof(*to));
	memcpy(to->grh.dgid.raw, from->dgid, sizeof(from->dgid));
	to->grh.flow_label = from->flow_label;
	to->grh.sgid_index = from->sgid_index;
	to->grh.hop_limit = from->hop_limit;
	to->grh.traffic_class = from->traffic_class;
	to->dlid = from->dlid;
	to->sl = from->sl;
	to->src_path_bits = from->path_bits;
	to->static_rate = from->rate;
	to->is_global = from->global;
	to->port_num = from->port;
}

void vb_ah_out(struct vb_ah_attr *to, const struct abi_ah_attr *from)
{
	memset(to, 0, sizeof(*to));
	memcpy(to->dgid, from->grh.dgid.raw, sizeof(to->dgid));
	to->flow_label = from->grh.flow_label;
	to->sgid_index = from->grh.sgid_index;
	to->hop_limit = from->grh.hop_limit;
	to->traffic_class = from->grh.traffic_class;
	to->dlid = from->dlid;
	to->sl = from->sl;
	to->path_bits = from->src_path_bits;
	to->rate = from->static_rate;
	to->global = from->is_global;
	to->port = from->port_num;
}

int vb_create_ah(struct abi_pd *pd, const struct vb_ah_attr *a, struct abi_ah **ah)
{
	struct abi_ah_attr attr;

	vb_ah_in(&attr, a);
	errno = 0;
	*ah = vb.ibv_create_ah(pd, &attr);
	return *ah ? 0 : vb_null();
}

int vb_destroy_ah(struct abi_ah *ah)
{
	errno = 0;
	return vb_errno(vb.ibv_destroy_ah(ah));
}
