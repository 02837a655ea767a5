//! Faults that come as signals: finding whose page it is, and leaving every other SIGBUS to whom it was for.
//!
//! The handler runs between any two instructions of any thread, which may be inside the allocator and hold any lock. It
//! and all that it calls use system calls, atomics and memory of their own only; they allocate nothing, take no lock but
//! the page table's (which nobody holds while touching a page), and leave `errno` as it was. Other signals wait meanwhile.

use super::space::Space;
use super::table::Touch;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock};
use std::{io, ptr};
use tidepool_base::{Error, Result, SqlState};

/// Paged mappings that a process can have.
const SPACES_MAX: usize = 64;

struct Entry {
    len: AtomicUsize,
    start: AtomicUsize,
    space: AtomicPtr<Space>,
}

/// Read without a lock. A thread that faults in a range holds the mapping, so its entry stands. Any other address must not
/// match an entry that is being replaced: entries go in as start, then length, and out as length zero, and a reader looks
/// at the length again.
static ENTRIES: [Entry; SPACES_MAX] =
    [const { Entry { len: AtomicUsize::new(0), start: AtomicUsize::new(0), space: AtomicPtr::new(ptr::null_mut()) } };
        SPACES_MAX];

/// Entries at and above this index were never used.
static ENTRIES_USED: AtomicUsize = AtomicUsize::new(0);

static CHANGES: Mutex<()> = Mutex::new(());

/// What SIGBUS meant before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// One mapping's entry. Taken out on drop.
#[derive(Debug)]
pub(super) struct Registration(usize);

/// # Safety
/// `space` lives, at this address, until the registration is dropped.
pub(super) unsafe fn register(space: *mut Space, start: usize, len: usize) -> Result<Registration> {
    let _changes = CHANGES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(index) = ENTRIES.iter().position(|entry| entry.len.load(Ordering::Relaxed) == 0) else {
        return Err(Error::new(
            SqlState::PROGRAM_LIMIT_EXCEEDED,
            format!("more than {SPACES_MAX} paged tablespaces are not possible"),
        ));
    };
    let entry = &ENTRIES[index];
    // The length became zero before: a reader that sees the new start also sees that or what comes after.
    fence(Ordering::Release);
    entry.space.store(space, Ordering::Relaxed);
    entry.start.store(start, Ordering::Release);
    entry.len.store(len, Ordering::Release);
    ENTRIES_USED.fetch_max(index + 1, Ordering::Release);
    Ok(Registration(index))
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _changes = CHANGES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        ENTRIES[self.0].len.store(0, Ordering::Release);
    }
}

fn find(address: usize) -> Option<*mut Space> {
    ENTRIES[..ENTRIES_USED.load(Ordering::Acquire)].iter().find_map(|entry| {
        let len = entry.len.load(Ordering::Acquire);
        let offset = address.wrapping_sub(entry.start.load(Ordering::Acquire));
        (offset < len && entry.len.load(Ordering::Relaxed) == len).then(|| entry.space.load(Ordering::Acquire))
    })
}

/// Whether any of `len` bytes at `start` lie in paged memory: system calls answer EFAULT for pages that are missing there.
pub(super) fn overlaps(start: usize, len: usize) -> bool {
    ENTRIES[..ENTRIES_USED.load(Ordering::Acquire)].iter().any(|entry| {
        let entry_len = entry.len.load(Ordering::Acquire);
        let entry_start = entry.start.load(Ordering::Acquire);
        start < entry_start.saturating_add(entry_len) && entry_start < start.saturating_add(len)
    })
}

/// Makes SIGBUS resolve faults from now on. Later calls do nothing.
pub(super) fn install() -> Result<()> {
    let _changes = CHANGES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if BEFORE.get().is_some() {
        return Ok(());
    }
    let failed = || Error::io("handle page faults", &io::Error::last_os_error());
    // SAFETY: plain structures, for which zeroes are valid; the calls read one and fill the other.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) != 0 {
            return Err(failed());
        }
        // Before it is needed: a foreign SIGBUS may come at once.
        let _ = BEFORE.set(before);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        // On the thread's own stack: an alternate one is made for reporting overflows, and small.
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigfillset(&mut action.sa_mask);
        if libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) != 0 {
            return Err(failed());
        }
    }
    Ok(())
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a live structure, and a fault's has an address.
    let fault = (!was_sent(info)).then(|| unsafe { (*info).si_addr() }.addr());
    match fault.and_then(|address| Some((address, find(address)?))) {
        Some((address, space)) => {
            // SAFETY: the calling thread's own.
            let errno = unsafe { *libc::__errno_location() };
            // SAFETY: registered, and held by whoever touches its pages.
            unsafe { (*space).resolve(address, touch(context)) };
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = errno };
        }
        None => forward(signal, info, context),
    }
}

/// What the instruction was about to do.
#[cfg(target_arch = "x86_64")]
fn touch(context: *mut libc::c_void) -> Touch {
    // SAFETY: a handler with SA_SIGINFO is passed a context. Of a page fault it holds the processor's error code, of which
    // bit 1 says that the access was a write.
    let error = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
    if error & 2 != 0 { Touch::Write } else { Touch::Read }
}

#[cfg(not(target_arch = "x86_64"))]
fn touch(_context: *mut libc::c_void) -> Touch {
    Touch::Unknown
}

/// By somebody, not for a fault. (Codes above zero are the kernel's own.)
fn was_sent(info: *const libc::siginfo_t) -> bool {
    // SAFETY: the kernel passes a live structure.
    unsafe { (*info).si_code <= 0 }
}

/// Does with a signal what would have been done without this module.
fn forward(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(before) = BEFORE.get() else { return };
    let sent = was_sent(info);
    match before.sa_sigaction {
        libc::SIG_IGN if sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: a plain structure, for which zeroes are valid and mean the default.
            let default: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: the default ends the process, when the instruction faults again or the signal is sent again.
            unsafe {
                libc::sigaction(signal, &default, ptr::null_mut());
                if sent {
                    libc::raise(signal);
                }
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: installed as a handler of this kind.
            let handler: Handler = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: installed as a handler of this kind.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
