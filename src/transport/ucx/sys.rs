//! The functions, structures and constants of UCP that Unisono uses, as `ucp/api/ucp.h` declares them from version 1.10 on.
//!
//! They are written by hand, so that a build needs no header. A test compares them with the installed one. Structures have a mask of the
//! fields that are set, and grow only at their end, so a later library accepts them.

#![allow(non_camel_case_types, reason = "UCX's names")]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// An `enum` of C in one byte.
pub(super) type ucs_status_t = i8;
/// A status, a request, or null.
pub(super) type ucs_status_ptr_t = *mut c_void;

pub(super) const UCS_OK: ucs_status_t = 0;
pub(super) const UCS_INPROGRESS: ucs_status_t = 1;
pub(super) const UCS_ERR_EXCEEDS_LIMIT: ucs_status_t = -21;
pub(super) const UCS_ERR_NOT_CONNECTED: ucs_status_t = -24;
/// The last status: addresses from here on are statuses.
pub(super) const UCS_ERR_LAST: ucs_status_t = -100;

pub(super) type ucp_context_h = *mut c_void;
pub(super) type ucp_worker_h = *mut c_void;
pub(super) type ucp_ep_h = *mut c_void;
pub(super) type ucp_conn_request_h = *mut c_void;
/// Used only behind pointers, as the next one.
pub(super) type ucp_config_t = c_void;
pub(super) type ucp_address_t = c_void;

pub(super) type ucp_err_handler_cb_t =
    Option<unsafe extern "C" fn(arg: *mut c_void, ep: ucp_ep_h, status: ucs_status_t)>;
pub(super) type ucp_am_recv_callback_t = Option<
    unsafe extern "C" fn(
        arg: *mut c_void,
        header: *const c_void,
        header_length: usize,
        data: *mut c_void,
        length: usize,
        param: *const ucp_am_recv_param_t,
    ) -> ucs_status_t,
>;

/// Defines structures, of which all fields may be zero, and describes their layout for the test.
macro_rules! structures {
    ($($name:ident { $($field:ident: $kind:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Debug, Clone, Copy)]
            pub(super) struct $name {
                $(pub(super) $field: $kind,)*
            }

            impl Default for $name {
                fn default() -> Self {
                    // SAFETY: all fields are integers, arrays and structures of them, pointers, or optional functions.
                    unsafe { std::mem::zeroed() }
                }
            }
        )*

        /// The structures, their sizes, and their fields with their offsets.
        #[cfg(test)]
        pub(super) const LAYOUT: &[(&str, usize, &[(&str, usize)])] = &[
            $((
                stringify!($name),
                size_of::<$name>(),
                &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
            ),)*
        ];
    };
}

structures! {
    ucp_params_t {
        field_mask: u64,
        features: u64,
        request_size: usize,
        request_init: *mut c_void,
        request_cleanup: *mut c_void,
        tag_sender_mask: u64,
        mt_workers_shared: c_int,
        estimated_num_eps: usize,
        estimated_num_ppn: usize,
    }
    ucp_worker_params_t {
        field_mask: u64,
        thread_mode: c_uint,
        cpu_mask: [u64; 16],
        events: c_uint,
        user_data: *mut c_void,
        event_fd: c_int,
    }
    ucp_worker_attr_t {
        field_mask: u64,
        thread_mode: c_uint,
        address_flags: u32,
        address: *mut ucp_address_t,
        address_length: usize,
        max_am_header: usize,
    }
    ucp_err_handler_t {
        cb: ucp_err_handler_cb_t,
        arg: *mut c_void,
    }
    ucs_sock_addr_t {
        addr: *const c_void,
        addrlen: u32,
    }
    ucp_ep_params_t {
        field_mask: u64,
        address: *const ucp_address_t,
        err_mode: c_uint,
        err_handler: ucp_err_handler_t,
        user_data: *mut c_void,
        flags: c_uint,
        sockaddr: ucs_sock_addr_t,
        conn_request: ucp_conn_request_h,
    }
    ucp_request_param_t {
        op_attr_mask: u32,
        flags: u32,
        request: *mut c_void,
        cb: *mut c_void,
        datatype: u64,
        user_data: *mut c_void,
        reply_buffer: *mut c_void,
        memory_type: c_uint,
        recv_info: *mut c_void,
    }
    ucp_am_handler_param_t {
        field_mask: u64,
        id: c_uint,
        flags: u32,
        cb: ucp_am_recv_callback_t,
        arg: *mut c_void,
    }
    ucp_am_recv_param_t {
        recv_attr: u64,
        reply_ep: ucp_ep_h,
    }
}

/// Defines constants, and lists them for the test.
macro_rules! constants {
    ($($name:ident: $kind:ty = $value:expr,)*) => {
        $(pub(super) const $name: $kind = $value;)*

        #[cfg(test)]
        pub(super) const CONSTANTS: &[(&str, u64)] = &[$((stringify!($name), $value as u64),)*];
    };
}

constants! {
    UCP_PARAM_FIELD_FEATURES: u64 = 1 << 0,
    UCP_PARAM_FIELD_ESTIMATED_NUM_EPS: u64 = 1 << 6,
    UCP_FEATURE_WAKEUP: u64 = 1 << 4,
    UCP_FEATURE_AM: u64 = 1 << 6,
    UCP_WORKER_PARAM_FIELD_THREAD_MODE: u64 = 1 << 0,
    UCS_THREAD_MODE_SERIALIZED: c_uint = 1,
    UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER: u64 = 1 << 3,
    UCP_EP_PARAM_FIELD_REMOTE_ADDRESS: u64 = 1 << 0,
    UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE: u64 = 1 << 1,
    UCP_EP_PARAM_FIELD_ERR_HANDLER: u64 = 1 << 2,
    UCP_ERR_HANDLING_MODE_PEER: c_uint = 1,
    UCP_OP_ATTR_FIELD_FLAGS: u32 = 1 << 4,
    UCP_EP_CLOSE_FLAG_FORCE: u32 = 1 << 0,
    UCP_AM_SEND_FLAG_EAGER: u32 = 1 << 1,
    UCP_AM_FLAG_WHOLE_MSG: u32 = 1 << 0,
    UCP_AM_RECV_ATTR_FLAG_DATA: u64 = 1 << 16,
    UCP_AM_RECV_ATTR_FLAG_RNDV: u64 = 1 << 17,
    UCP_AM_HANDLER_PARAM_FIELD_ID: u64 = 1 << 0,
    UCP_AM_HANDLER_PARAM_FIELD_FLAGS: u64 = 1 << 1,
    UCP_AM_HANDLER_PARAM_FIELD_CB: u64 = 1 << 2,
    UCP_AM_HANDLER_PARAM_FIELD_ARG: u64 = 1 << 3,
}

/// Declares the functions, resolves them in a library, and lists their signatures for the test.
macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {
        /// All functions that Unisono uses, resolved.
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument: $kind),*) $(-> $result)?,)*
        }

        impl Functions {
            /// Resolves all functions in a library that stays loaded, or in those that it is linked with.
            ///
            /// # Errors
            /// The names of the functions that the library lacks.
            ///
            /// # Safety
            /// Functions of these names must have the signatures that `ucp.h` declares. The library must not be closed while the result
            /// is used.
            pub(super) unsafe fn resolve(library: &libloading::Library) -> Result<Self, Vec<&'static str>> {
                $(
                    // SAFETY: the caller promises that the function has this signature.
                    let $name = unsafe { library.get(stringify!($name)) }.map(|symbol| *symbol).ok();
                )*
                if let ($(Some($name),)*) = ($($name,)*) {
                    return Ok(Self { $($name,)* });
                }
                let all = [$(($name.is_none(), stringify!($name)),)*];
                Err(all.into_iter().filter_map(|(is_missing, name)| is_missing.then_some(name)).collect())
            }
        }

        #[cfg(test)]
        pub(super) const SIGNATURES: &[(&str, &[&str], &str)] =
            &[$((stringify!($name), &[$(stringify!($kind)),*], stringify!($($result)?)),)*];
    };
}

functions! {
    ucs_status_string(status: ucs_status_t) -> *const c_char;
    ucp_get_version(major_version: *mut c_uint, minor_version: *mut c_uint, release_number: *mut c_uint);
    ucp_init_version(
        api_major_version: c_uint,
        api_minor_version: c_uint,
        params: *const ucp_params_t,
        config: *const ucp_config_t,
        context_p: *mut ucp_context_h
    ) -> ucs_status_t;
    ucp_cleanup(context_p: ucp_context_h);
    ucp_worker_create(
        context: ucp_context_h,
        params: *const ucp_worker_params_t,
        worker_p: *mut ucp_worker_h
    ) -> ucs_status_t;
    ucp_worker_destroy(worker: ucp_worker_h);
    ucp_worker_query(worker: ucp_worker_h, attr: *mut ucp_worker_attr_t) -> ucs_status_t;
    ucp_worker_get_address(
        worker: ucp_worker_h,
        address_p: *mut *mut ucp_address_t,
        address_length_p: *mut usize
    ) -> ucs_status_t;
    ucp_worker_release_address(worker: ucp_worker_h, address: *mut ucp_address_t);
    ucp_worker_progress(worker: ucp_worker_h) -> c_uint;
    ucp_worker_get_efd(worker: ucp_worker_h, fd: *mut c_int) -> ucs_status_t;
    ucp_worker_arm(worker: ucp_worker_h) -> ucs_status_t;
    ucp_ep_create(worker: ucp_worker_h, params: *const ucp_ep_params_t, ep_p: *mut ucp_ep_h) -> ucs_status_t;
    ucp_ep_flush_nbx(ep: ucp_ep_h, param: *const ucp_request_param_t) -> ucs_status_ptr_t;
    ucp_ep_close_nbx(ep: ucp_ep_h, param: *const ucp_request_param_t) -> ucs_status_ptr_t;
    ucp_worker_set_am_recv_handler(
        worker: ucp_worker_h,
        param: *const ucp_am_handler_param_t
    ) -> ucs_status_t;
    ucp_am_send_nbx(
        ep: ucp_ep_h,
        id: c_uint,
        header: *const c_void,
        header_length: usize,
        buffer: *const c_void,
        count: usize,
        param: *const ucp_request_param_t
    ) -> ucs_status_ptr_t;
    ucp_am_recv_data_nbx(
        worker: ucp_worker_h,
        data_desc: *mut c_void,
        buffer: *mut c_void,
        count: usize,
        param: *const ucp_request_param_t
    ) -> ucs_status_ptr_t;
    ucp_am_data_release(worker: ucp_worker_h, data: *mut c_void);
    ucp_request_check_status(request: *mut c_void) -> ucs_status_t;
    ucp_request_free(request: *mut c_void);
}
