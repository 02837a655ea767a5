use std::fmt::{self, Write};

/// Ends the process, saying why: for books that contradict each other, where going on would hand memory out twice.
///
/// Usable inside the global allocator: allocates nothing, takes no lock and does not unwind.
#[cold]
pub fn stop(why: fmt::Arguments<'_>) -> ! {
    let mut line = Line { bytes: [0; LINE_BYTES], len: 0 };
    // What does not fit is cut off.
    let _ = writeln!(line, "tidepool stops: {why}");
    // SAFETY: the bytes are live; nothing can be done about a closed standard error.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len) };
    std::process::abort();
}

const LINE_BYTES: usize = 256;

struct Line {
    bytes: [u8; LINE_BYTES],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let taken = text.len().min(room.len());
        room[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        if taken == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}
