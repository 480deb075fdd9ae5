//! A worker of UCX with its connections. Its calls are sound, except where memory is lent to UCX.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null, null_mut};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use unisono_collectives::Rank;

use super::inbox::{Descriptor, Envelope, Inbox, Lost, Payload, on_error, on_piece, on_signal};
use super::library::{API, Library, Status};
use super::sys::{self, Functions, UCS_ERR_LAST, UCS_INPROGRESS, UCS_OK, ucs_status_ptr_t, ucs_status_t};

const PIECE_ID: c_uint = 0;
const GREETING_ID: c_uint = 1;
const FAREWELL_ID: c_uint = 2;
/// The largest payload that is sent without waiting for its receiver, since programs send short messages before they receive.
const EAGER_BYTES: usize = 8 << 10;
/// The time that an ending worker waits until UCX has released lent memory.
const END: Duration = Duration::from_secs(5);
/// The time that an ending worker first waits until all messages have arrived. Over TCP that requires progress of the other rank, which may
/// use only other communicators. But the kernel has the bytes, and continues to send them.
const FLUSH: Duration = Duration::from_millis(100);
const NAP: Duration = Duration::from_millis(1);

/// A worker in a separate context, since UCX may not be built for several threads in one context.
#[derive(Debug)]
pub(super) struct Worker {
    functions: &'static Functions,
    context: sys::ucp_context_h,
    /// Null until it is created.
    worker: sys::ucp_worker_h,
    /// Readable after an event, once the worker is armed.
    events: c_int,
    /// By rank.
    endpoints: Box<[Cell<Option<NonNull<c_void>>>]>,
    /// UCX holds its address.
    pub(super) inbox: Rc<Inbox>,
    is_stuck: Cell<bool>,
    /// The process that created it. A forked child has a copy, which belongs to its parent.
    process: u32,
}

// SAFETY: UCX allows any thread to use a worker in its serialized mode, one at a time. No other code has a reference to the inbox, and
// UCX calls its functions only on the thread that makes progress.
unsafe impl Send for Worker {}

/// A send, a receive or an end of a connection that UCX has not completed.
#[derive(Debug)]
pub(super) struct Request(NonNull<c_void>);

// SAFETY: only its worker uses it, on the worker's thread.
unsafe impl Send for Request {}

fn check(status: ucs_status_t) -> Result<(), Status> {
    if status == UCS_OK { Ok(()) } else { Err(Status(status)) }
}

/// Returns the request that a function returned; none if it has completed.
fn request(returned: ucs_status_ptr_t) -> Result<Option<Request>, Status> {
    // Statuses are returned as the last addresses.
    let is_status = returned.addr() >= (UCS_ERR_LAST as isize).cast_unsigned();
    match NonNull::new(returned) {
        Some(status) if is_status => Err(Status(status.as_ptr().addr() as ucs_status_t)),
        request => Ok(request.map(Request)),
    }
}

impl Worker {
    pub(super) fn new(library: &'static Library, (own, ranks): (Rank, usize)) -> Result<Self, Status> {
        let mut worker = Self {
            functions: &library.functions,
            context: null_mut(),
            worker: null_mut(),
            events: -1,
            endpoints: vec![Cell::new(None); ranks].into(),
            is_stuck: Cell::new(false),
            inbox: Rc::new(Inbox::new(own, ranks)),
            process: std::process::id(),
        };
        let functions = worker.functions;
        let params = sys::ucp_params_t {
            field_mask: sys::UCP_PARAM_FIELD_FEATURES | sys::UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
            features: sys::UCP_FEATURE_AM | sys::UCP_FEATURE_WAKEUP,
            estimated_num_eps: ranks,
            ..Default::default()
        };
        // SAFETY: the addresses are valid during the call; without a configuration, UCX reads its environment variables.
        check(unsafe {
            (functions.ucp_init_version)(API.0, API.1, &raw const params, null(), &raw mut worker.context)
        })?;
        let params = sys::ucp_worker_params_t {
            field_mask: sys::UCP_WORKER_PARAM_FIELD_THREAD_MODE,
            thread_mode: sys::UCS_THREAD_MODE_SERIALIZED,
            ..Default::default()
        };
        // SAFETY: the context is initialised, and the addresses are valid during the call.
        check(unsafe {
            (functions.ucp_worker_create)(worker.context, &raw const params, &raw mut worker.worker)
        })?;
        // SAFETY: the worker is created, and the address is valid during the call.
        check(unsafe { (functions.ucp_worker_get_efd)(worker.worker, &raw mut worker.events) })?;
        worker.set_handlers()?;
        Ok(worker)
    }

    fn set_handlers(&self) -> Result<(), Status> {
        let mut attributes = sys::ucp_worker_attr_t {
            field_mask: sys::UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER,
            ..Default::default()
        };
        // SAFETY: the worker is created, and the address is valid during the call.
        check(unsafe { (self.functions.ucp_worker_query)(self.worker, &raw mut attributes) })?;
        if attributes.max_am_header < size_of::<Envelope>() {
            return Err(Status(sys::UCS_ERR_EXCEEDS_LIMIT));
        }
        let handlers = [
            (PIECE_ID, on_piece as _),
            (GREETING_ID, on_signal::<false> as _),
            (FAREWELL_ID, on_signal::<true> as _),
        ];
        for (id, cb) in handlers {
            let param = sys::ucp_am_handler_param_t {
                field_mask: sys::UCP_AM_HANDLER_PARAM_FIELD_ID
                    | sys::UCP_AM_HANDLER_PARAM_FIELD_FLAGS
                    | sys::UCP_AM_HANDLER_PARAM_FIELD_CB
                    | sys::UCP_AM_HANDLER_PARAM_FIELD_ARG,
                id,
                flags: sys::UCP_AM_FLAG_WHOLE_MSG,
                cb: Some(cb),
                arg: self.inbox.as_argument(),
            };
            // SAFETY: the inbox does not move until the worker is destroyed, and is used by the thread that makes progress.
            check(unsafe { (self.functions.ucp_worker_set_am_recv_handler)(self.worker, &raw const param) })?;
        }
        Ok(())
    }

    pub(super) fn address(&self) -> Result<Vec<u8>, Status> {
        let (mut address, mut size_bytes) = (null_mut(), 0);
        // SAFETY: the worker is created; the addresses are valid during the call.
        check(unsafe {
            (self.functions.ucp_worker_get_address)(self.worker, &raw mut address, &raw mut size_bytes)
        })?;
        // SAFETY: UCX has returned the address of this many bytes, which stay until they are released.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), size_bytes) }.to_vec();
        // SAFETY: the address belongs to this worker, and is not used again.
        unsafe { (self.functions.ucp_worker_release_address)(self.worker, address) };
        Ok(bytes)
    }

    /// Begins to connect with a rank, and to greet it.
    ///
    /// # Safety
    /// The bytes must be an [address](Worker::address) of a worker.
    pub(super) unsafe fn connect(&self, other: Rank, address: &[u8]) -> Result<Option<Request>, Status> {
        let params = sys::ucp_ep_params_t {
            field_mask: sys::UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
                | sys::UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                | sys::UCP_EP_PARAM_FIELD_ERR_HANDLER,
            address: address.as_ptr().cast(),
            err_mode: sys::UCP_ERR_HANDLING_MODE_PEER,
            err_handler: sys::ucp_err_handler_t { cb: Some(on_error), arg: self.inbox.argument_for(other) },
            ..Default::default()
        };
        let mut endpoint = null_mut();
        // SAFETY: the caller promises that it is an address, which UCX copies. The inbox does not move until the worker is destroyed.
        check(unsafe { (self.functions.ucp_ep_create)(self.worker, &raw const params, &raw mut endpoint) })?;
        self.endpoints[other].set(NonNull::new(endpoint));
        self.signal(other, GREETING_ID)
    }

    /// Begins to send a message whose header is this rank.
    fn signal(&self, to: Rank, id: c_uint) -> Result<Option<Request>, Status> {
        // SAFETY: the header is in the inbox, which does not change it, until the worker is destroyed.
        unsafe { self.message(to, id, bytemuck::bytes_of(&self.inbox.own), &[]) }
    }

    /// Begins to send a piece of a payload to a rank.
    ///
    /// # Safety
    /// Envelope and bytes must stay valid and unchanged until the request [is done](Worker::is_done).
    pub(super) unsafe fn send(
        &self,
        to: Rank,
        envelope: *const Envelope,
        bytes: *const [u8],
    ) -> Result<Option<Request>, Status> {
        let envelope = std::ptr::slice_from_raw_parts(envelope.cast::<u8>(), size_of::<Envelope>());
        // SAFETY: as the caller promises.
        unsafe { self.message(to, PIECE_ID, envelope, bytes) }
    }

    /// As [`Worker::send`], for any message.
    unsafe fn message(
        &self,
        to: Rank,
        id: c_uint,
        header: *const [u8],
        bytes: *const [u8],
    ) -> Result<Option<Request>, Status> {
        let Some(endpoint) = self.endpoints[to].get() else { return Err(Status(sys::UCS_ERR_NOT_CONNECTED)) };
        let flags = if bytes.len() <= EAGER_BYTES { sys::UCP_AM_SEND_FLAG_EAGER } else { 0 };
        let param = with_flags(flags);
        // SAFETY: the endpoint is open; the caller keeps header and bytes until the request is done.
        request(unsafe {
            (self.functions.ucp_am_send_nbx)(
                endpoint.as_ptr(),
                id,
                header.cast(),
                header.len(),
                bytes.cast(),
                bytes.len(),
                &raw const param,
            )
        })
    }

    /// Begins to receive an offered piece into a place of its size.
    ///
    /// # Safety
    /// The offer must have arrived at this worker. The place must stay valid, and must not
    /// be accessed, until the request [is done](Worker::is_done).
    pub(super) unsafe fn receive(
        &self,
        Descriptor(offer): Descriptor,
        place: *mut [u8],
    ) -> Result<Option<Request>, Status> {
        let param = with_flags(0);
        let (start, size_bytes) = (place.cast(), place.len());
        // SAFETY: as the caller promises.
        request(unsafe {
            (self.functions.ucp_am_recv_data_nbx)(
                self.worker,
                offer.as_ptr(),
                start,
                size_bytes,
                &raw const param,
            )
        })
    }

    /// Releases a piece that is not received.
    pub(super) fn release(&self, payload: Payload) {
        if let Payload::Held(Descriptor(descriptor), _) | Payload::Offered(Descriptor(descriptor), _) =
            payload
        {
            // SAFETY: the descriptor arrived at this worker, and is consumed here.
            unsafe { (self.functions.ucp_am_data_release)(self.worker, descriptor.as_ptr()) };
        }
    }

    /// Returns whether a request is done, after which it must not be used again. Requests are done, or fail, while the worker makes progress.
    pub(super) fn is_done(&self, request: &Request) -> Result<bool, Status> {
        let request = request.0.as_ptr();
        // SAFETY: the request belongs to this worker, and is not freed.
        let status = unsafe { (self.functions.ucp_request_check_status)(request) };
        if status == UCS_INPROGRESS {
            return Ok(false);
        }
        // SAFETY: the request is completed, and the caller does not use it again.
        unsafe { (self.functions.ucp_request_free)(request) };
        check(status).map(|()| true)
    }

    /// Makes progress without blocking. Returns whether there was any.
    pub(super) fn progress(&self) -> bool {
        // SAFETY: the worker is created, and one thread at a time uses it.
        unsafe { (self.functions.ucp_worker_progress)(self.worker) > 0 }
    }

    /// Sleeps until there may be progress, at most for this time.
    pub(super) fn wait(&self, most: Duration) {
        // SAFETY: the worker is created with this feature.
        if unsafe { (self.functions.ucp_worker_arm)(self.worker) } != UCS_OK {
            // An event has happened already.
            return;
        }
        // SAFETY: UCX closes the file with the worker.
        let events = unsafe { BorrowedFd::borrow_raw(self.events) };
        let most = Timespec::try_from(most).ok();
        // If it fails, the rank polls again at once.
        let _ = rustix::event::poll(&mut [PollFd::new(&events, PollFlags::IN)], most.as_ref());
    }

    /// Sends a farewell to a rank, and flushes everything that was sent to it.
    fn part_from(&self, other: Rank) -> impl Iterator<Item = Request> {
        let endpoint = self.endpoints[other].get().filter(|_| self.inbox.lost(other).is_none());
        let requests = endpoint.map(|endpoint| {
            let param = with_flags(0);
            let farewell = self.signal(other, FAREWELL_ID);
            // SAFETY: the endpoint is open, and the parameters are valid during the call.
            let flush = unsafe { (self.functions.ucp_ep_flush_nbx)(endpoint.as_ptr(), &raw const param) };
            // If it fails, UCX reports the end to the other rank, or has done so.
            [farewell, request(flush)].map(|request| request.unwrap_or(None))
        });
        requests.into_iter().flatten().flatten()
    }

    /// Closes the connection with a rank, which ends all its requests.
    fn close(&self, other: Rank) -> Option<Request> {
        let endpoint = self.endpoints[other].take()?;
        self.inbox.clear(other).into_iter().for_each(|(_, payload)| self.release(payload));
        self.inbox.lose(other, Lost::Closed);
        let param = with_flags(sys::UCP_EP_CLOSE_FLAG_FORCE);
        // SAFETY: the endpoint is open, and not used again. Both ends have the error handling that closing at once needs.
        let closing = unsafe { (self.functions.ucp_ep_close_nbx)(endpoint.as_ptr(), &raw const param) };
        // If it fails, the endpoint ends with the worker.
        request(closing).unwrap_or(None)
    }

    /// Closes the connections with these ranks, and waits for the end of their `requests`.
    pub(super) fn end(&self, others: impl Iterator<Item = Rank>, requests: Vec<Request>) {
        let closing = others.filter_map(|other| self.close(other)).chain(requests).collect();
        if !self.finish(closing, END).is_empty() {
            self.is_stuck.set(true);
        }
    }

    /// Makes progress until all requests are done, or have failed, at most for this time. Returns the requests that are not done.
    fn finish(&self, mut requests: Vec<Request>, most: Duration) -> Vec<Request> {
        let began = Instant::now();
        loop {
            requests.retain(|request| self.is_done(request) == Ok(false));
            if requests.is_empty() || self.is_stuck() || began.elapsed() > most {
                return requests;
            }
            if !self.progress() {
                self.wait(NAP);
            }
        }
    }

    /// Returns whether this process is a forked child of the one that created the worker.
    pub(super) fn is_of_parent(&self) -> bool {
        self.process != std::process::id()
    }

    /// Returns whether UCX still holds memory that was lent to it, although the connections that used it are closed.
    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck.get()
    }
}

fn with_flags(flags: u32) -> sys::ucp_request_param_t {
    sys::ucp_request_param_t { op_attr_mask: sys::UCP_OP_ATTR_FIELD_FLAGS, flags, ..Default::default() }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.is_of_parent() {
            return;
        }
        let ranks = 0..self.endpoints.len();
        let late = self.finish(ranks.clone().flat_map(|other| self.part_from(other)).collect(), FLUSH);
        self.end(ranks, late);
        if self.is_stuck() {
            // An adapter may still access memory, so UCX keeps everything that it holds.
            std::mem::forget(Rc::clone(&self.inbox));
            return;
        }
        // SAFETY: both exist if they are not null, and are not used again.
        unsafe {
            if !self.worker.is_null() {
                (self.functions.ucp_worker_destroy)(self.worker);
            }
            if !self.context.is_null() {
                (self.functions.ucp_cleanup)(self.context);
            }
        }
    }
}
