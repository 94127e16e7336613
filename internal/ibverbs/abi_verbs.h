// The binary interface of libibverbs as this package uses it: layouts of the structures
// that cross it. Every name and number here is held against the real headers by
// TestABI. Fields that nobody here looks at are named after their place.
#ifndef VERBENA_ABI_VERBS_H
#define VERBENA_ABI_VERBS_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct abi_context;
struct abi_pd;
struct abi_mw;
struct abi_qp;
struct abi_srq;
struct abi_cq;
struct abi_send_wr;
struct abi_recv_wr;
struct abi_wc;

union abi_gid {
	uint8_t raw[16];
	uint64_t half[2];
};

struct abi_device {
	void *ops[2];
	int32_t node_type;
	int32_t transport_type;
	char name[64];
	char dev_name[64];
	char dev_path[256];
	char ibdev_path[256];
};

// The operations that the C header calls without a function of the library.
struct abi_context_ops {
	void *unused_0[7];
	struct abi_mw *(*alloc_mw)(struct abi_pd *pd, int32_t type);
	void *unused_64;
	int (*dealloc_mw)(struct abi_mw *mw);
	void *unused_80;
	int (*poll_cq)(struct abi_cq *cq, int n, struct abi_wc *wc);
	int (*req_notify_cq)(struct abi_cq *cq, int solicited_only);
	void *unused_104[7];
	int (*post_srq_recv)(struct abi_srq *srq, struct abi_recv_wr *wr, struct abi_recv_wr **bad);
	void *unused_168[4];
	int (*post_send)(struct abi_qp *qp, struct abi_send_wr *wr, struct abi_send_wr **bad);
	int (*post_recv)(struct abi_qp *qp, struct abi_recv_wr *wr, struct abi_recv_wr **bad);
	void *unused_216[5];
};

struct abi_context {
	struct abi_device *device;
	struct abi_context_ops ops;
	int cmd_fd;
	int async_fd;
	int num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat; // all ones: a verbs_context is around it
};

struct abi_port_attr;
struct abi_device_attr_ex;
struct abi_modify_cq_attr;

struct abi_values_ex {
	uint32_t comp_mask;
	struct timespec raw_clock; // mlx4 and mlx5 give all ticks as nanoseconds
};

struct abi_query_device_ex_input {
	uint32_t comp_mask;
};

// verbs_context, from the operations that are used here to its end. It grows at the
// front: sz says whether an operation is there.
struct abi_verbs_context {
	int (*query_port)(struct abi_context *context, uint8_t port, struct abi_port_attr *attr, size_t len);
	void *unused_8[16];
	int (*modify_cq)(struct abi_cq *cq, struct abi_modify_cq_attr *attr);
	void *unused_144[6];
	int (*query_rt_values)(struct abi_context *context, struct abi_values_ex *values);
	void *unused_200[2];
	int (*query_device_ex)(struct abi_context *context, const struct abi_query_device_ex_input *input,
			       struct abi_device_attr_ex *attr, size_t len);
	void *unused_224[10];
	uint64_t unused_304;
	size_t sz;
	struct abi_context context;
};

struct abi_pd {
	struct abi_context *context;
	uint32_t handle;
};

struct abi_mr {
	struct abi_context *context;
	struct abi_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
};

struct abi_mw {
	struct abi_context *context;
	struct abi_pd *pd;
	uint32_t rkey;
	uint32_t handle;
	int32_t type;
};

struct abi_comp_channel {
	struct abi_context *context;
	int fd;
	int refcnt;
};

struct abi_cq {
	struct abi_context *context;
	struct abi_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t comp_events_completed;
	uint32_t async_events_completed;
};

struct abi_srq {
	struct abi_context *context;
	void *srq_context;
	struct abi_pd *pd;
	uint32_t handle;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct abi_qp {
	struct abi_context *context;
	void *qp_context;
	struct abi_pd *pd;
	struct abi_cq *send_cq;
	struct abi_cq *recv_cq;
	struct abi_srq *srq;
	uint32_t handle;
	uint32_t qp_num;
	int32_t state;
	int32_t qp_type;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct abi_ah {
	struct abi_context *context;
	struct abi_pd *pd;
	uint32_t handle;
};

struct abi_wc {
	uint64_t wr_id;
	int32_t status;
	int32_t opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm_data; // network order; or the key that was invalidated
	uint32_t qp_num;
	uint32_t src_qp;
	uint32_t wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
};

struct abi_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct abi_send_wr {
	uint64_t wr_id;
	struct abi_send_wr *next;
	struct abi_sge *sg_list;
	int num_sge;
	int32_t opcode;
	uint32_t send_flags;
	uint32_t imm_data; // network order; or the key to invalidate
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		struct {
			uint64_t remote_addr;
			uint64_t compare_add;
			uint64_t swap;
			uint32_t rkey;
		} atomic;
		struct {
			struct abi_ah *ah;
			uint32_t remote_qpn;
			uint32_t remote_qkey;
		} ud;
	} wr;
	uint32_t remote_srqn;
	struct {
		struct abi_mw *mw;
		uint32_t rkey;
		struct {
			struct abi_mr *mr;
			uint64_t addr;
			uint64_t length;
			unsigned int mw_access_flags;
		} bind_info;
	} bind_mw;
};

struct abi_recv_wr {
	uint64_t wr_id;
	struct abi_recv_wr *next;
	struct abi_sge *sg_list;
	int num_sge;
};

struct abi_qp_cap {
	uint32_t max_send_wr;
	uint32_t max_recv_wr;
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t max_inline_data;
};

struct abi_qp_init_attr {
	void *qp_context;
	struct abi_cq *send_cq;
	struct abi_cq *recv_cq;
	struct abi_srq *srq;
	struct abi_qp_cap cap;
	int32_t qp_type;
	int sq_sig_all;
};

struct abi_srq_attr {
	uint32_t max_wr;
	uint32_t max_sge;
	uint32_t srq_limit;
};

struct abi_srq_init_attr {
	void *srq_context;
	struct abi_srq_attr attr;
};

struct abi_global_route {
	union abi_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index;
	uint8_t hop_limit;
	uint8_t traffic_class;
};

struct abi_ah_attr {
	struct abi_global_route grh;
	uint16_t dlid;
	uint8_t sl;
	uint8_t src_path_bits;
	uint8_t static_rate;
	uint8_t is_global;
	uint8_t port_num;
};

struct abi_qp_attr {
	int32_t qp_state;
	int32_t cur_qp_state;
	int32_t path_mtu;
	int32_t path_mig_state;
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qp_num;
	uint32_t qp_access_flags;
	struct abi_qp_cap cap;
	struct abi_ah_attr ah_attr;
	struct abi_ah_attr alt_ah_attr;
	uint16_t pkey_index;
	uint16_t alt_pkey_index;
	uint8_t en_sqd_async_notify;
	uint8_t sq_draining;
	uint8_t max_rd_atomic;
	uint8_t max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint8_t alt_port_num;
	uint8_t alt_timeout;
	uint32_t rate_limit;
};

struct abi_device_attr {
	char fw_ver[64];
	uint64_t node_guid; // network order
	uint64_t sys_image_guid;
	uint64_t max_mr_size;
	uint64_t page_size_cap;
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t hw_ver;
	int max_qp;
	int max_qp_wr;
	uint32_t device_cap_flags;
	int max_sge;
	int max_sge_rd;
	int max_cq;
	int max_cqe;
	int max_mr;
	int max_pd;
	int max_qp_rd_atom;
	int max_ee_rd_atom;
	int max_res_rd_atom;
	int max_qp_init_rd_atom;
	int max_ee_init_rd_atom;
	int32_t atomic_cap;
	int max_ee;
	int max_rdd;
	int max_mw;
	int max_raw_ipv6_qp;
	int max_raw_ethy_qp;
	int max_mcast_grp;
	int max_mcast_qp_attach;
	int max_total_mcast_qp_attach;
	int max_ah;
	int max_fmr;
	int max_map_per_fmr;
	int max_srq;
	int max_srq_wr;
	int max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay;
	uint8_t phys_port_cnt;
};

// The library fills in no more than the size that it is told, so that what newer
// versions append does no harm.
struct abi_device_attr_ex {
	struct abi_device_attr orig;
	uint32_t comp_mask;
	uint64_t odp_general;
	uint32_t odp_rc;
	uint32_t odp_uc;
	uint32_t odp_ud;
	uint64_t completion_timestamp_mask;
	uint64_t hca_core_clock;
	uint64_t device_cap_flags_ex;
	uint32_t tso[2];
	struct {
		uint32_t sizes[3];
		uint64_t fields;
		uint8_t function;
	} rss;
	uint32_t max_wq_type_rq;
	uint32_t pacing[3];
	uint32_t raw_packet_caps;
	uint32_t tm[5];
	uint16_t max_cq_count;
	uint16_t max_cq_period; // in µs
	uint64_t max_dm_size;
	uint16_t pci_atomic[3];
	uint32_t xrc_odp;
	uint32_t phys_port_cnt_ex;
};

// The first 48 bytes are what the exported ibv_query_port writes.
struct abi_port_attr {
	int32_t state;
	int32_t max_mtu;
	int32_t active_mtu;
	int gid_tbl_len;
	uint32_t port_cap_flags;
	uint32_t max_msg_sz;
	uint32_t bad_pkey_cntr;
	uint32_t qkey_viol_cntr;
	uint16_t pkey_tbl_len;
	uint16_t lid;
	uint16_t sm_lid;
	uint8_t lmc;
	uint8_t max_vl_num;
	uint8_t sm_sl;
	uint8_t subnet_timeout;
	uint8_t init_type_reply;
	uint8_t active_width;
	uint8_t active_speed;
	uint8_t phys_state;
	uint8_t link_layer;
	uint8_t flags;
	uint16_t port_cap_flags2;
};

#define ABI_QPF_GRH_REQUIRED 1

struct abi_gid_entry {
	union abi_gid gid;
	uint32_t gid_index;
	uint32_t port_num;
	uint32_t gid_type;
	uint32_t ndev_ifindex;
};

struct abi_async_event {
	union {
		struct abi_cq *cq;
		struct abi_qp *qp;
		struct abi_srq *srq;
		void *wq;
		int port_num;
	} element;
	int32_t event_type;
};

struct abi_modify_cq_attr {
	uint32_t attr_mask;
	uint16_t cq_count;
	uint16_t cq_period; // in µs
};

#define ABI_CQ_ATTR_MODERATE 1
#define ABI_VALUES_RAW_CLOCK 1u
#define ABI_MW_TYPE_1 1
#define ABI_MW_TYPE_2 2
#define ABI_ACCESS_OPTIONAL 0x3ff00000u // bits that a device may ignore

// Events that are about an object.
enum {
	ABI_EVENT_CQ_ERR = 0,
	ABI_EVENT_QP_FATAL = 1,
	ABI_EVENT_QP_REQ_ERR = 2,
	ABI_EVENT_QP_ACCESS_ERR = 3,
	ABI_EVENT_COMM_EST = 4,
	ABI_EVENT_SQ_DRAINED = 5,
	ABI_EVENT_PATH_MIG = 6,
	ABI_EVENT_PATH_MIG_ERR = 7,
	ABI_EVENT_DEVICE_FATAL = 8,
	ABI_EVENT_SRQ_ERR = 14,
	ABI_EVENT_SRQ_LIMIT_REACHED = 15,
	ABI_EVENT_QP_LAST_WQE_REACHED = 16,
	ABI_EVENT_WQ_FATAL = 19,
};

// Requests, as ib.Opcode numbers them.
enum {
	ABI_WR_RDMA_WRITE = 0,
	ABI_WR_RDMA_WRITE_WITH_IMM = 1,
	ABI_WR_SEND = 2,
	ABI_WR_SEND_WITH_IMM = 3,
	ABI_WR_RDMA_READ = 4,
	ABI_WR_ATOMIC_CMP_AND_SWP = 5,
	ABI_WR_ATOMIC_FETCH_AND_ADD = 6,
	ABI_WR_LOCAL_INV = 7,
	ABI_WR_BIND_MW = 8,
	ABI_WR_SEND_WITH_INV = 9,
};

#define ABI_QPT_UD 4
#define ABI_SEND_INLINE 8
#define ABI_WC_WITH_INV 8

#endif
