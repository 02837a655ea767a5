//! Waiting until this server shows what the client has written at another one (`tidepool.read_after`).

use super::Session;
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::Lsn;

impl Session {
    /// To be awaited before a statement's snapshot is drawn. Where the server shows the position, which it mostly does, that is
    /// one look.
    #[inline]
    pub(super) async fn shown_here(&mut self) -> Result<()> {
        match self.settings.read_after() {
            Some(position) if !self.planner.database().shows(position) => {
                Box::pin(self.wait_until_shown(position)).await
            }
            _ => Ok(()),
        }
    }

    async fn wait_until_shown(&mut self, position: Lsn) -> Result<()> {
        // What is waited for takes its time: others may have the block's place.
        self.give_up_place();
        let (told, shown) = tokio::sync::oneshot::channel();
        let _wait = self.planner.database().when_shown(position, move |outcome| drop(told.send(outcome)));
        let interrupt = self.interrupt();
        tokio::select! {
            biased;
            shown = shown => {
                shown.unwrap_or_else(|_| Err(Error::new(SqlState::ADMIN_SHUTDOWN, "the database is being closed")))
            }
            error = interrupt.wait() => Err(error.with_detail(format!(
                "The server has not come to {position} in the log, which tidepool.read_after asks for."
            ))),
        }
    }
}
