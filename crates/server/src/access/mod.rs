//! Who may do what: roles from the configuration, tokens, and the table of endpoints. It knows nothing of HTTP beyond
//! methods and paths, and decides nothing about jobs.

mod directory;
mod rate;
mod refusals;
mod settings;
mod table;
mod token;

pub use settings::{Access, Ceiling, Ceilings, Members, OthersSee};
pub use table::{ENDPOINTS, Endpoint, Reach, markdown};
pub use token::Token;

pub(crate) use directory::Directory;
pub(crate) use rate::Rate;
pub(crate) use refusals::Refusals;
pub(crate) use token::{MOST_TOKENS, Secret, TOKEN_LIFE, sha256_of, unix_ms};
