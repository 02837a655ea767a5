//! The engine's part of plans: which it is ([`lower`]), what its expressions are ([`expressions`]), and how it runs among
//! DataFusion's operators ([`exec`]).

mod aggregate;
mod exec;
mod expressions;
mod lower;
mod node;
mod values;
mod window;

pub use exec::EngineExec;
pub use lower::{lower, may_take_targets};
pub use node::{EngineNodes, whole};
