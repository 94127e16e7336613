// The multiplexed way, for comparison with docs/events.md: one loop around epoll.
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <sys/epoll.h>

void on_cm(enum rdma_cm_event_type type, struct rdma_cm_id *id, int status);
void on_wc(struct ibv_wc *wc);
void on_async(enum ibv_event_type type);
void on_socket(int fd);

static int serve_cm(struct rdma_event_channel *channel) {
  struct rdma_cm_event *event;
  while (rdma_get_cm_event(channel, &event) == 0) { // until EAGAIN
    enum rdma_cm_event_type type = event->event;
    struct rdma_cm_id *id = event->id;
    int status = event->status;
    rdma_ack_cm_event(event);
    on_cm(type, id, status);
  }
  return errno == EAGAIN ? 0 : -1;
}

static int serve_cq(struct ibv_comp_channel *channel, struct ibv_cq *cq) {
  struct ibv_cq *fired;
  void *context;
  unsigned events = 0;
  while (ibv_get_cq_event(channel, &fired, &context) == 0)
    events++;
  if (errno != EAGAIN)
    return -1;
  if (events)
    ibv_ack_cq_events(cq, events); // one CQ on this channel
  if (ibv_req_notify_cq(cq, 0))
    return -1;
  struct ibv_wc wc[64];
  int n;
  while ((n = ibv_poll_cq(cq, 64, wc)) > 0)
    for (int i = 0; i < n; i++)
      on_wc(&wc[i]);
  return n;
}

static int serve_async(struct ibv_context *device) {
  struct ibv_async_event event;
  while (ibv_get_async_event(device, &event) == 0) {
    enum ibv_event_type type = event.event_type;
    ibv_ack_async_event(&event);
    on_async(type);
  }
  return errno == EAGAIN ? 0 : -1;
}

static int watch(int epoll, int fd) {
  struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
  if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK))
    return -1;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
}

int loop(struct rdma_event_channel *cm, struct ibv_comp_channel *channel, struct ibv_cq *cq,
         struct ibv_context *device, int socket) {
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0 || watch(epoll, cm->fd) || watch(epoll, channel->fd) || watch(epoll, device->async_fd) ||
      watch(epoll, socket))
    return -1;
  if (serve_cq(channel, cq)) // the first time arms it
    return -1;
  for (;;) {
    struct epoll_event e[16];
    int n = epoll_wait(epoll, e, 16, -1);
    if (n < 0 && errno != EINTR)
      return -1;
    for (int i = 0; i < n; i++) {
      int fd = e[i].data.fd, bad = 0;
      if (fd == cm->fd)
        bad = serve_cm(cm);
      else if (fd == channel->fd)
        bad = serve_cq(channel, cq);
      else if (fd == device->async_fd)
        bad = serve_async(device);
      else
        on_socket(fd);
      if (bad)
        return -1;
    }
  }
}
