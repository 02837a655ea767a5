//! How a command waits for others.

use tidepool_base::Result;

/// How a command waits for others: asked again and again while it does, and between copies.
pub trait Patience: Send + Sync {
    /// An error when the command is to end.
    fn check(&self) -> Result<()>;

    /// What the command comes to is about to be decided, once and for all: an error as `check`'s. Without one it is not to end any more.
    fn settle(&self) -> Result<()> {
        self.check()
    }

    /// A wait for what others hold begins. What is returned is called during it, and ends it with an error when it
    /// takes too long (`lock_timeout`), or as `check` does.
    fn begin_wait(&self) -> Box<dyn Fn() -> Result<()> + '_>;
}

/// For tests and for programs that have no sessions: waits for ever.
impl Patience for () {
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn begin_wait(&self) -> Box<dyn Fn() -> Result<()> + '_> {
        Box::new(|| Ok(()))
    }
}
