//! Whether this server is the one that somebody looks for: what load balancers and orchestrators ask, by the names and with the
//! status codes of Patroni's interface. 200 is yes, 503 is no. The body says why, as JSON.

use crate::service::{Phase, Service};
use hyper::StatusCode;
use serde_json::{Value, json};
use tidepool_base::ByteSize;
use tidepool_database::HostRole;
use tidepool_planner::POSTGRES_VERSION_NUMBER;

/// What a server is, as health endpoints see it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Health {
    role: Role,
    phase: Phase,
    /// Bytes of the log that a standby has not applied, as far as it knows; of a primary 0.
    lag_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It writes.
    Primary,
    /// It follows, and answers queries.
    Standby,
    /// It is on its way to one of these, or was taken over from: it answers nothing.
    Neither,
}

/// What a path asks. `None`: it is no path of these.
fn question(path: &str) -> Option<Question> {
    Some(match path {
        "/" | "/primary" | "/master" | "/read-write" | "/leader" => Question::Primary,
        "/replica" => Question::Standby,
        "/read-only" => Question::Readable,
        // Commits wait for no standby.
        "/read-only-sync" => Question::Primary,
        "/asynchronous" | "/async" => Question::Standby,
        "/synchronous" | "/sync" | "/standby-leader" | "/standby_leader" => Question::Never,
        "/health" | "/readiness" => Question::Serves,
        "/liveness" | "/patroni" => Question::Always,
        _ => return None,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Primary,
    Standby,
    /// A primary, or a standby.
    Readable,
    /// Answers clients.
    Serves,
    /// The process goes on, whatever it does.
    Always,
    /// No server is that: a standby that commits wait for, or one of a cluster that follows another cluster.
    Never,
}

impl Health {
    fn of(service: &Service) -> Health {
        let database = service.planner.database();
        let role = match database.role() {
            HostRole::Alone if database.is_following() => Role::Standby,
            HostRole::Alone | HostRole::Primary => Role::Primary,
            HostRole::Following => Role::Standby,
            HostRole::TakingOver | HostRole::Fenced | HostRole::Failed => Role::Neither,
        };
        let lag_bytes = match role {
            Role::Primary => Some(0),
            Role::Standby => database.lag_bytes(),
            Role::Neither => None,
        };
        Health { role, phase: *service.phase.borrow(), lag_bytes }
    }

    /// Of a server that does not serve yet.
    fn starting() -> Health {
        Health { role: Role::Neither, phase: Phase::Starting, lag_bytes: None }
    }

    fn answers(&self, question: Question, lag_max: Option<u64>) -> bool {
        let is_up = self.phase == Phase::Running && self.role != Role::Neither;
        let is_primary = is_up && self.role == Role::Primary;
        // One that does not know how far it is behind may be too far.
        let is_near = lag_max.is_none_or(|most| self.lag_bytes.is_some_and(|lag| lag <= most));
        let is_standby = is_up && self.role == Role::Standby && is_near;
        match question {
            Question::Primary => is_primary,
            Question::Standby => is_standby,
            Question::Readable | Question::Serves => is_primary || is_standby,
            Question::Always => true,
            Question::Never => false,
        }
    }

    fn state(&self) -> &'static str {
        match (self.phase, self.role) {
            (Phase::Starting, _) => "starting",
            (Phase::Fenced, _) => "stopped",
            (Phase::Running, Role::Neither) => "promoting",
            (Phase::Running, _) => "running",
            (Phase::Stopping, _) => "stopping",
        }
    }

    fn role_name(&self) -> &'static str {
        match self.role {
            Role::Primary => "primary",
            Role::Standby => "replica",
            Role::Neither => "uninitialized",
        }
    }
}

/// The status code and the body for a path, with its query. `None`: the path asks nothing of this kind.
/// Without a service the server is starting.
pub(crate) fn answer(service: Option<&Service>, path: &str, query: &str) -> Option<(StatusCode, String)> {
    let question = question(path)?;
    let health = service.map_or_else(Health::starting, Health::of);
    let lag = query.split('&').find_map(|pair| pair.strip_prefix("lag="));
    let lag_max = match lag.map(|text| text.parse::<ByteSize>()).transpose() {
        Ok(lag_max) => lag_max.map(|size| size.0),
        Err(error) => return Some((StatusCode::BAD_REQUEST, json!({ "error": error.message() }).to_string())),
    };
    let status = match health.answers(question, lag_max) {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    Some((status, body(&health, service).to_string()))
}

fn body(health: &Health, service: Option<&Service>) -> Value {
    let mut body = json!({
        "state": health.state(),
        "role": health.role_name(),
        "server_version": POSTGRES_VERSION_NUMBER,
        "tidepool": { "version": env!("CARGO_PKG_VERSION") },
    });
    if let Some(lag) = health.lag_bytes.filter(|_| health.role == Role::Standby) {
        body["lag"] = lag.into();
    }
    if let Some(service) = service {
        if let Some(term) = service.planner.database().term() {
            body["timeline"] = term.into();
        }
        body["connections"] = service.connections().into();
    }
    body
}
