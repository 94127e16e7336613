// Compiled by TestABI, with the headers of rdma-core installed: the declarations of this
// package are held against the real ones. It has no code.
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "../abi_cm.h"
#include "../abi_verbs.h"

#define SAME(ours, theirs, what) _Static_assert((ours) == (theirs), what)
#define SIZE(ours, theirs) SAME(sizeof(struct ours), sizeof(struct theirs), #theirs)
#define FIELD_AS(ours, theirs, f, g) \
	SAME(offsetof(struct ours, f), offsetof(struct theirs, g), #theirs "." #g); \
	SAME(sizeof(((struct ours *)0)->f), sizeof(((struct theirs *)0)->g), "size of " #theirs "." #g)
#define FIELD(ours, theirs, f) FIELD_AS(ours, theirs, f, f)
#define VALUE(ours, theirs) SAME((int)(ours), (int)(theirs), #theirs)

// From the extended context to the end of it: where it begins does not matter.
#define BACK(ours, f) (offsetof(struct ours, context) - offsetof(struct ours, f))
#define EXTENDED(f) SAME(BACK(abi_verbs_context, f), BACK(verbs_context, f), "verbs_context." #f)

SIZE(abi_device, ibv_device);
FIELD(abi_device, ibv_device, node_type);
FIELD(abi_device, ibv_device, transport_type);
FIELD(abi_device, ibv_device, name);
FIELD(abi_device, ibv_device, dev_name);
FIELD(abi_device, ibv_device, dev_path);
FIELD(abi_device, ibv_device, ibdev_path);

SIZE(abi_context_ops, ibv_context_ops);
FIELD(abi_context_ops, ibv_context_ops, alloc_mw);
FIELD(abi_context_ops, ibv_context_ops, dealloc_mw);
FIELD(abi_context_ops, ibv_context_ops, poll_cq);
FIELD(abi_context_ops, ibv_context_ops, req_notify_cq);
FIELD(abi_context_ops, ibv_context_ops, post_srq_recv);
FIELD(abi_context_ops, ibv_context_ops, post_send);
FIELD(abi_context_ops, ibv_context_ops, post_recv);

SIZE(abi_context, ibv_context);
FIELD(abi_context, ibv_context, device);
FIELD(abi_context, ibv_context, ops);
FIELD(abi_context, ibv_context, cmd_fd);
FIELD(abi_context, ibv_context, async_fd);
FIELD(abi_context, ibv_context, num_comp_vectors);
FIELD(abi_context, ibv_context, mutex);
FIELD(abi_context, ibv_context, abi_compat);

SIZE(abi_pd, ibv_pd);
FIELD(abi_pd, ibv_pd, context);
FIELD(abi_pd, ibv_pd, handle);

SIZE(abi_mr, ibv_mr);
FIELD(abi_mr, ibv_mr, context);
FIELD(abi_mr, ibv_mr, pd);
FIELD(abi_mr, ibv_mr, addr);
FIELD(abi_mr, ibv_mr, length);
FIELD(abi_mr, ibv_mr, handle);
FIELD(abi_mr, ibv_mr, lkey);
FIELD(abi_mr, ibv_mr, rkey);

SIZE(abi_mw, ibv_mw);
FIELD(abi_mw, ibv_mw, context);
FIELD(abi_mw, ibv_mw, pd);
FIELD(abi_mw, ibv_mw, rkey);
FIELD(abi_mw, ibv_mw, handle);
FIELD(abi_mw, ibv_mw, type);

SIZE(abi_values_ex, ibv_values_ex);
FIELD(abi_values_ex, ibv_values_ex, comp_mask);
FIELD(abi_values_ex, ibv_values_ex, raw_clock);

SIZE(abi_comp_channel, ibv_comp_channel);
FIELD(abi_comp_channel, ibv_comp_channel, context);
FIELD(abi_comp_channel, ibv_comp_channel, fd);
FIELD(abi_comp_channel, ibv_comp_channel, refcnt);

SIZE(abi_cq, ibv_cq);
FIELD(abi_cq, ibv_cq, context);
FIELD(abi_cq, ibv_cq, channel);
FIELD(abi_cq, ibv_cq, cq_context);
FIELD(abi_cq, ibv_cq, handle);
FIELD(abi_cq, ibv_cq, cqe);
FIELD(abi_cq, ibv_cq, mutex);
FIELD(abi_cq, ibv_cq, cond);
FIELD(abi_cq, ibv_cq, comp_events_completed);
FIELD(abi_cq, ibv_cq, async_events_completed);

SIZE(abi_srq, ibv_srq);
FIELD(abi_srq, ibv_srq, context);
FIELD(abi_srq, ibv_srq, srq_context);
FIELD(abi_srq, ibv_srq, pd);
FIELD(abi_srq, ibv_srq, handle);
FIELD(abi_srq, ibv_srq, mutex);
FIELD(abi_srq, ibv_srq, cond);
FIELD(abi_srq, ibv_srq, events_completed);

SIZE(abi_qp, ibv_qp);
FIELD(abi_qp, ibv_qp, context);
FIELD(abi_qp, ibv_qp, qp_context);
FIELD(abi_qp, ibv_qp, pd);
FIELD(abi_qp, ibv_qp, send_cq);
FIELD(abi_qp, ibv_qp, recv_cq);
FIELD(abi_qp, ibv_qp, srq);
FIELD(abi_qp, ibv_qp, handle);
FIELD(abi_qp, ibv_qp, qp_num);
FIELD(abi_qp, ibv_qp, state);
FIELD(abi_qp, ibv_qp, qp_type);
FIELD(abi_qp, ibv_qp, mutex);
FIELD(abi_qp, ibv_qp, cond);
FIELD(abi_qp, ibv_qp, events_completed);

SIZE(abi_ah, ibv_ah);
FIELD(abi_ah, ibv_ah, context);
FIELD(abi_ah, ibv_ah, pd);
FIELD(abi_ah, ibv_ah, handle);

SIZE(abi_wc, ibv_wc);
FIELD(abi_wc, ibv_wc, wr_id);
FIELD(abi_wc, ibv_wc, status);
FIELD(abi_wc, ibv_wc, opcode);
FIELD(abi_wc, ibv_wc, vendor_err);
FIELD(abi_wc, ibv_wc, byte_len);
FIELD(abi_wc, ibv_wc, imm_data);
FIELD(abi_wc, ibv_wc, qp_num);
FIELD(abi_wc, ibv_wc, src_qp);
FIELD(abi_wc, ibv_wc, wc_flags);
FIELD(abi_wc, ibv_wc, pkey_index);
FIELD(abi_wc, ibv_wc, slid);
FIELD(abi_wc, ibv_wc, sl);
FIELD(abi_wc, ibv_wc, dlid_path_bits);

SIZE(abi_sge, ibv_sge);
FIELD(abi_sge, ibv_sge, addr);
FIELD(abi_sge, ibv_sge, length);
FIELD(abi_sge, ibv_sge, lkey);

SIZE(abi_send_wr, ibv_send_wr);
FIELD(abi_send_wr, ibv_send_wr, wr_id);
FIELD(abi_send_wr, ibv_send_wr, next);
FIELD(abi_send_wr, ibv_send_wr, sg_list);
FIELD(abi_send_wr, ibv_send_wr, num_sge);
FIELD(abi_send_wr, ibv_send_wr, opcode);
FIELD(abi_send_wr, ibv_send_wr, send_flags);
FIELD(abi_send_wr, ibv_send_wr, imm_data);
FIELD(abi_send_wr, ibv_send_wr, wr.rdma.remote_addr);
FIELD(abi_send_wr, ibv_send_wr, wr.rdma.rkey);
FIELD(abi_send_wr, ibv_send_wr, wr.atomic.remote_addr);
FIELD(abi_send_wr, ibv_send_wr, wr.atomic.compare_add);
FIELD(abi_send_wr, ibv_send_wr, wr.atomic.swap);
FIELD(abi_send_wr, ibv_send_wr, wr.atomic.rkey);
FIELD(abi_send_wr, ibv_send_wr, wr.ud.ah);
FIELD(abi_send_wr, ibv_send_wr, bind_mw.mw);
FIELD(abi_send_wr, ibv_send_wr, bind_mw.rkey);
FIELD(abi_send_wr, ibv_send_wr, bind_mw.bind_info.mr);
FIELD(abi_send_wr, ibv_send_wr, bind_mw.bind_info.addr);
FIELD(abi_send_wr, ibv_send_wr, bind_mw.bind_info.length);
FIELD(abi_send_wr, ibv_send_wr, bind_mw.bind_info.mw_access_flags);
FIELD(abi_send_wr, ibv_send_wr, wr.ud.remote_qpn);
FIELD(abi_send_wr, ibv_send_wr, wr.ud.remote_qkey);
FIELD_AS(abi_send_wr, ibv_send_wr, remote_srqn, qp_type.xrc.remote_srqn);

SIZE(abi_recv_wr, ibv_recv_wr);
FIELD(abi_recv_wr, ibv_recv_wr, wr_id);
FIELD(abi_recv_wr, ibv_recv_wr, next);
FIELD(abi_recv_wr, ibv_recv_wr, sg_list);
FIELD(abi_recv_wr, ibv_recv_wr, num_sge);

SIZE(abi_qp_cap, ibv_qp_cap);
FIELD(abi_qp_cap, ibv_qp_cap, max_send_wr);
FIELD(abi_qp_cap, ibv_qp_cap, max_recv_wr);
FIELD(abi_qp_cap, ibv_qp_cap, max_send_sge);
FIELD(abi_qp_cap, ibv_qp_cap, max_recv_sge);
FIELD(abi_qp_cap, ibv_qp_cap, max_inline_data);

SIZE(abi_qp_init_attr, ibv_qp_init_attr);
FIELD(abi_qp_init_attr, ibv_qp_init_attr, qp_context);
FIELD(abi_qp_init_attr, ibv_qp_init_attr, send_cq);
FIELD(abi_qp_init_attr, ibv_qp_init_attr, recv_cq);
FIELD(abi_qp_init_attr, ibv_qp_init_attr, srq);
FIELD(abi_qp_init_attr, ibv_qp_init_attr, cap);
FIELD(abi_qp_init_attr, ibv_qp_init_attr, qp_type);
FIELD(abi_qp_init_attr, ibv_qp_init_attr, sq_sig_all);

SIZE(abi_srq_attr, ibv_srq_attr);
FIELD(abi_srq_attr, ibv_srq_attr, max_wr);
FIELD(abi_srq_attr, ibv_srq_attr, max_sge);
FIELD(abi_srq_attr, ibv_srq_attr, srq_limit);

SIZE(abi_srq_init_attr, ibv_srq_init_attr);
FIELD(abi_srq_init_attr, ibv_srq_init_attr, srq_context);
FIELD(abi_srq_init_attr, ibv_srq_init_attr, attr);

SIZE(abi_global_route, ibv_global_route);
FIELD(abi_global_route, ibv_global_route, dgid);
FIELD(abi_global_route, ibv_global_route, flow_label);
FIELD(abi_global_route, ibv_global_route, sgid_index);
FIELD(abi_global_route, ibv_global_route, hop_limit);
FIELD(abi_global_route, ibv_global_route, traffic_class);

SIZE(abi_ah_attr, ibv_ah_attr);
FIELD(abi_ah_attr, ibv_ah_attr, grh);
FIELD(abi_ah_attr, ibv_ah_attr, dlid);
FIELD(abi_ah_attr, ibv_ah_attr, sl);
FIELD(abi_ah_attr, ibv_ah_attr, src_path_bits);
FIELD(abi_ah_attr, ibv_ah_attr, static_rate);
FIELD(abi_ah_attr, ibv_ah_attr, is_global);
FIELD(abi_ah_attr, ibv_ah_attr, port_num);

SIZE(abi_qp_attr, ibv_qp_attr);
FIELD(abi_qp_attr, ibv_qp_attr, qp_state);
FIELD(abi_qp_attr, ibv_qp_attr, cur_qp_state);
FIELD(abi_qp_attr, ibv_qp_attr, path_mtu);
FIELD(abi_qp_attr, ibv_qp_attr, path_mig_state);
FIELD(abi_qp_attr, ibv_qp_attr, qkey);
FIELD(abi_qp_attr, ibv_qp_attr, rq_psn);
FIELD(abi_qp_attr, ibv_qp_attr, sq_psn);
FIELD(abi_qp_attr, ibv_qp_attr, dest_qp_num);
FIELD(abi_qp_attr, ibv_qp_attr, qp_access_flags);
FIELD(abi_qp_attr, ibv_qp_attr, cap);
FIELD(abi_qp_attr, ibv_qp_attr, ah_attr);
FIELD(abi_qp_attr, ibv_qp_attr, alt_ah_attr);
FIELD(abi_qp_attr, ibv_qp_attr, pkey_index);
FIELD(abi_qp_attr, ibv_qp_attr, alt_pkey_index);
FIELD(abi_qp_attr, ibv_qp_attr, en_sqd_async_notify);
FIELD(abi_qp_attr, ibv_qp_attr, sq_draining);
FIELD(abi_qp_attr, ibv_qp_attr, max_rd_atomic);
FIELD(abi_qp_attr, ibv_qp_attr, max_dest_rd_atomic);
FIELD(abi_qp_attr, ibv_qp_attr, min_rnr_timer);
FIELD(abi_qp_attr, ibv_qp_attr, port_num);
FIELD(abi_qp_attr, ibv_qp_attr, timeout);
FIELD(abi_qp_attr, ibv_qp_attr, retry_cnt);
FIELD(abi_qp_attr, ibv_qp_attr, rnr_retry);
FIELD(abi_qp_attr, ibv_qp_attr, alt_port_num);
FIELD(abi_qp_attr, ibv_qp_attr, alt_timeout);
FIELD(abi_qp_attr, ibv_qp_attr, rate_limit);

SIZE(abi_device_attr, ibv_device_attr);
FIELD(abi_device_attr, ibv_device_attr, fw_ver);
FIELD(abi_device_attr, ibv_device_attr, node_guid);
FIELD(abi_device_attr, ibv_device_attr, sys_image_guid);
FIELD(abi_device_attr, ibv_device_attr, max_mr_size);
FIELD(abi_device_attr, ibv_device_attr, page_size_cap);
FIELD(abi_device_attr, ibv_device_attr, vendor_id);
FIELD(abi_device_attr, ibv_device_attr, vendor_part_id);
FIELD(abi_device_attr, ibv_device_attr, hw_ver);
FIELD(abi_device_attr, ibv_device_attr, max_qp);
FIELD(abi_device_attr, ibv_device_attr, max_qp_wr);
FIELD(abi_device_attr, ibv_device_attr, device_cap_flags);
FIELD(abi_device_attr, ibv_device_attr, max_sge);
FIELD(abi_device_attr, ibv_device_attr, max_sge_rd);
FIELD(abi_device_attr, ibv_device_attr, max_cq);
FIELD(abi_device_attr, ibv_device_attr, max_cqe);
FIELD(abi_device_attr, ibv_device_attr, max_mr);
FIELD(abi_device_attr, ibv_device_attr, max_pd);
FIELD(abi_device_attr, ibv_device_attr, max_qp_rd_atom);
FIELD(abi_device_attr, ibv_device_attr, max_ee_rd_atom);
FIELD(abi_device_attr, ibv_device_attr, max_res_rd_atom);
FIELD(abi_device_attr, ibv_device_attr, max_qp_init_rd_atom);
FIELD(abi_device_attr, ibv_device_attr, max_ee_init_rd_atom);
FIELD(abi_device_attr, ibv_device_attr, atomic_cap);
FIELD(abi_device_attr, ibv_device_attr, max_ee);
FIELD(abi_device_attr, ibv_device_attr, max_rdd);
FIELD(abi_device_attr, ibv_device_attr, max_mw);
FIELD(abi_device_attr, ibv_device_attr, max_raw_ipv6_qp);
FIELD(abi_device_attr, ibv_device_attr, max_raw_ethy_qp);
FIELD(abi_device_attr, ibv_device_attr, max_mcast_grp);
FIELD(abi_device_attr, ibv_device_attr, max_mcast_qp_attach);
FIELD(abi_device_attr, ibv_device_attr, max_total_mcast_qp_attach);
FIELD(abi_device_attr, ibv_device_attr, max_ah);
FIELD(abi_device_attr, ibv_device_attr, max_fmr);
FIELD(abi_device_attr, ibv_device_attr, max_map_per_fmr);
FIELD(abi_device_attr, ibv_device_attr, max_srq);
FIELD(abi_device_attr, ibv_device_attr, max_srq_wr);
FIELD(abi_device_attr, ibv_device_attr, max_srq_sge);
FIELD(abi_device_attr, ibv_device_attr, max_pkeys);
FIELD(abi_device_attr, ibv_device_attr, local_ca_ack_delay);
FIELD(abi_device_attr, ibv_device_attr, phys_port_cnt);

SIZE(abi_device_attr_ex, ibv_device_attr_ex);
FIELD_AS(abi_device_attr_ex, ibv_device_attr_ex, orig, orig_attr);
FIELD(abi_device_attr_ex, ibv_device_attr_ex, comp_mask);
FIELD_AS(abi_device_attr_ex, ibv_device_attr_ex, odp_general, odp_caps.general_caps);
FIELD_AS(abi_device_attr_ex, ibv_device_attr_ex, odp_rc, odp_caps.per_transport_caps.rc_odp_caps);
FIELD_AS(abi_device_attr_ex, ibv_device_attr_ex, odp_ud, odp_caps.per_transport_caps.ud_odp_caps);
FIELD(abi_device_attr_ex, ibv_device_attr_ex, completion_timestamp_mask);
FIELD(abi_device_attr_ex, ibv_device_attr_ex, hca_core_clock);
FIELD(abi_device_attr_ex, ibv_device_attr_ex, device_cap_flags_ex);
FIELD_AS(abi_device_attr_ex, ibv_device_attr_ex, tso, tso_caps);
FIELD_AS(abi_device_attr_ex, ibv_device_attr_ex, rss, rss_caps);
FIELD(abi_device_attr_ex, ibv_device_attr_ex, max_wq_type_rq);
FIELD_AS(abi_device_attr_ex, ibv_device_attr_ex, pacing, packet_pacing_caps);
FIELD(abi_device_attr_ex, ibv_device_attr_ex, raw_packet_caps);
FIELD_AS(abi_device_attr_ex, ibv_device_attr_ex, tm, tm_caps);
FIELD_AS(abi_device_attr_ex, ibv_device_attr_ex, max_cq_count, cq_mod_caps.max_cq_count);
FIELD_AS(abi_device_attr_ex, ibv_device_attr_ex, max_cq_period, cq_mod_caps.max_cq_period);
FIELD(abi_device_attr_ex, ibv_device_attr_ex, max_dm_size);
FIELD_AS(abi_device_attr_ex, ibv_device_attr_ex, pci_atomic, pci_atomic_caps);
FIELD_AS(abi_device_attr_ex, ibv_device_attr_ex, xrc_odp, xrc_odp_caps);
FIELD(abi_device_attr_ex, ibv_device_attr_ex, phys_port_cnt_ex);

SIZE(abi_gid_entry, ibv_gid_entry);
FIELD(abi_gid_entry, ibv_gid_entry, gid);
FIELD(abi_gid_entry, ibv_gid_entry, gid_index);
FIELD(abi_gid_entry, ibv_gid_entry, port_num);
FIELD(abi_gid_entry, ibv_gid_entry, gid_type);
FIELD(abi_gid_entry, ibv_gid_entry, ndev_ifindex);

SIZE(abi_async_event, ibv_async_event);
FIELD(abi_async_event, ibv_async_event, element);
FIELD(abi_async_event, ibv_async_event, event_type);

SIZE(abi_modify_cq_attr, ibv_modify_cq_attr);
FIELD(abi_modify_cq_attr, ibv_modify_cq_attr, attr_mask);
FIELD_AS(abi_modify_cq_attr, ibv_modify_cq_attr, cq_count, moderate.cq_count);
FIELD_AS(abi_modify_cq_attr, ibv_modify_cq_attr, cq_period, moderate.cq_period);

SIZE(abi_event_channel, rdma_event_channel);
FIELD(abi_event_channel, rdma_event_channel, fd);

SIZE(abi_cm_id, rdma_cm_id);
FIELD(abi_cm_id, rdma_cm_id, verbs);
FIELD(abi_cm_id, rdma_cm_id, channel);
FIELD(abi_cm_id, rdma_cm_id, context);
FIELD(abi_cm_id, rdma_cm_id, qp);
FIELD(abi_cm_id, rdma_cm_id, route);
FIELD_AS(abi_cm_id, rdma_cm_id, route.src, route.addr.src_storage);
FIELD_AS(abi_cm_id, rdma_cm_id, route.dst, route.addr.dst_storage);
FIELD(abi_cm_id, rdma_cm_id, route.path_rec);
FIELD(abi_cm_id, rdma_cm_id, route.num_paths);
FIELD(abi_cm_id, rdma_cm_id, ps);
FIELD(abi_cm_id, rdma_cm_id, port_num);
FIELD(abi_cm_id, rdma_cm_id, event);
FIELD(abi_cm_id, rdma_cm_id, send_cq_channel);
FIELD(abi_cm_id, rdma_cm_id, send_cq);
FIELD(abi_cm_id, rdma_cm_id, recv_cq_channel);
FIELD(abi_cm_id, rdma_cm_id, recv_cq);
FIELD(abi_cm_id, rdma_cm_id, srq);
FIELD(abi_cm_id, rdma_cm_id, pd);
FIELD(abi_cm_id, rdma_cm_id, qp_type);

SIZE(abi_conn_param, rdma_conn_param);
FIELD(abi_conn_param, rdma_conn_param, private_data);
FIELD(abi_conn_param, rdma_conn_param, private_data_len);
FIELD(abi_conn_param, rdma_conn_param, responder_resources);
FIELD(abi_conn_param, rdma_conn_param, initiator_depth);
FIELD(abi_conn_param, rdma_conn_param, flow_control);
FIELD(abi_conn_param, rdma_conn_param, retry_count);
FIELD(abi_conn_param, rdma_conn_param, rnr_retry_count);
FIELD(abi_conn_param, rdma_conn_param, srq);
FIELD(abi_conn_param, rdma_conn_param, qp_num);

SIZE(abi_ud_param, rdma_ud_param);
FIELD(abi_ud_param, rdma_ud_param, private_data);
FIELD(abi_ud_param, rdma_ud_param, private_data_len);
FIELD(abi_ud_param, rdma_ud_param, ah_attr);
FIELD(abi_ud_param, rdma_ud_param, qp_num);
FIELD(abi_ud_param, rdma_ud_param, qkey);

SIZE(abi_cm_event, rdma_cm_event);
FIELD(abi_cm_event, rdma_cm_event, id);
FIELD(abi_cm_event, rdma_cm_event, listen_id);
FIELD(abi_cm_event, rdma_cm_event, event);
FIELD(abi_cm_event, rdma_cm_event, status);
FIELD(abi_cm_event, rdma_cm_event, param.conn);
FIELD(abi_cm_event, rdma_cm_event, param.ud);

SIZE(abi_join_mc_attr_ex, rdma_cm_join_mc_attr_ex);
FIELD(abi_join_mc_attr_ex, rdma_cm_join_mc_attr_ex, comp_mask);
FIELD(abi_join_mc_attr_ex, rdma_cm_join_mc_attr_ex, join_flags);
FIELD(abi_join_mc_attr_ex, rdma_cm_join_mc_attr_ex, addr);

// Newer headers append to it.
FIELD(abi_port_attr, ibv_port_attr, state);
FIELD(abi_port_attr, ibv_port_attr, max_mtu);
FIELD(abi_port_attr, ibv_port_attr, active_mtu);
FIELD(abi_port_attr, ibv_port_attr, gid_tbl_len);
FIELD(abi_port_attr, ibv_port_attr, port_cap_flags);
FIELD(abi_port_attr, ibv_port_attr, max_msg_sz);
FIELD(abi_port_attr, ibv_port_attr, bad_pkey_cntr);
FIELD(abi_port_attr, ibv_port_attr, qkey_viol_cntr);
FIELD(abi_port_attr, ibv_port_attr, pkey_tbl_len);
FIELD(abi_port_attr, ibv_port_attr, lid);
FIELD(abi_port_attr, ibv_port_attr, sm_lid);
FIELD(abi_port_attr, ibv_port_attr, lmc);
FIELD(abi_port_attr, ibv_port_attr, max_vl_num);
FIELD(abi_port_attr, ibv_port_attr, sm_sl);
FIELD(abi_port_attr, ibv_port_attr, subnet_timeout);
FIELD(abi_port_attr, ibv_port_attr, init_type_reply);
FIELD(abi_port_attr, ibv_port_attr, active_width);
FIELD(abi_port_attr, ibv_port_attr, active_speed);
FIELD(abi_port_attr, ibv_port_attr, phys_state);
FIELD(abi_port_attr, ibv_port_attr, link_layer);
FIELD(abi_port_attr, ibv_port_attr, flags);
FIELD(abi_port_attr, ibv_port_attr, port_cap_flags2);

EXTENDED(query_port);
EXTENDED(modify_cq);
EXTENDED(query_rt_values);
EXTENDED(query_device_ex);
EXTENDED(sz);

VALUE(ABI_EVENT_CQ_ERR, IBV_EVENT_CQ_ERR);
VALUE(ABI_EVENT_QP_FATAL, IBV_EVENT_QP_FATAL);
VALUE(ABI_EVENT_QP_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
VALUE(ABI_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
VALUE(ABI_EVENT_COMM_EST, IBV_EVENT_COMM_EST);
VALUE(ABI_EVENT_SQ_DRAINED, IBV_EVENT_SQ_DRAINED);
VALUE(ABI_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG);
VALUE(ABI_EVENT_PATH_MIG_ERR, IBV_EVENT_PATH_MIG_ERR);
VALUE(ABI_EVENT_DEVICE_FATAL, IBV_EVENT_DEVICE_FATAL);
VALUE(ABI_EVENT_SRQ_ERR, IBV_EVENT_SRQ_ERR);
VALUE(ABI_EVENT_SRQ_LIMIT_REACHED, IBV_EVENT_SRQ_LIMIT_REACHED);
VALUE(ABI_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_LAST_WQE_REACHED);
VALUE(ABI_EVENT_WQ_FATAL, IBV_EVENT_WQ_FATAL);
VALUE(ABI_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE);
VALUE(ABI_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM);
VALUE(ABI_WR_SEND, IBV_WR_SEND);
VALUE(ABI_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_IMM);
VALUE(ABI_WR_RDMA_READ, IBV_WR_RDMA_READ);
VALUE(ABI_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_CMP_AND_SWP);
VALUE(ABI_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_FETCH_AND_ADD);
VALUE(ABI_WR_LOCAL_INV, IBV_WR_LOCAL_INV);
VALUE(ABI_WR_BIND_MW, IBV_WR_BIND_MW);
VALUE(ABI_WR_SEND_WITH_INV, IBV_WR_SEND_WITH_INV);
VALUE(ABI_SEND_INLINE, IBV_SEND_INLINE);
VALUE(ABI_QPF_GRH_REQUIRED, IBV_QPF_GRH_REQUIRED);
VALUE(ABI_WC_WITH_INV, IBV_WC_WITH_INV);
VALUE(ABI_VALUES_RAW_CLOCK, IBV_VALUES_MASK_RAW_CLOCK);
VALUE(ABI_MW_TYPE_1, IBV_MW_TYPE_1);
VALUE(ABI_MW_TYPE_2, IBV_MW_TYPE_2);
VALUE(ABI_CQ_ATTR_MODERATE, IBV_CQ_ATTR_MODERATE);
SAME(ABI_ACCESS_OPTIONAL, IBV_ACCESS_OPTIONAL_RANGE, "IBV_ACCESS_OPTIONAL_RANGE");
VALUE(ABI_JOIN_ADDRESS, RDMA_CM_JOIN_MC_ATTR_ADDRESS);
VALUE(ABI_JOIN_FLAGS, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS);
VALUE(ABI_CM_ADDR_ERROR, RDMA_CM_EVENT_ADDR_ERROR);
VALUE(ABI_CM_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_REQUEST);
VALUE(ABI_CM_DEVICE_REMOVAL, RDMA_CM_EVENT_DEVICE_REMOVAL);
VALUE(ABI_CM_MULTICAST_JOIN, RDMA_CM_EVENT_MULTICAST_JOIN);
VALUE(ABI_CM_MULTICAST_ERROR, RDMA_CM_EVENT_MULTICAST_ERROR);
VALUE(ABI_QPT_UD, IBV_QPT_UD);
