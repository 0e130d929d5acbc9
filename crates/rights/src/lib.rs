//! Who may spend a limit.
pub mod broken;
pub mod identity;
pub mod loan;
pub mod session;
pub mod standing;
pub mod transfer;
pub mod versions;

pub use identity::{Region, Writer};
pub use loan::{Book, Change, Expired, Grant, Held, Kind, Lent, Offer, Refusal, Return};
pub use session::{Beat, Beats, Renew, Session, Sessions, stretch};
pub use standing::Split;
pub use transfer::{Row, Transfers};
pub use versions::{Ack, Mark, Version, Versions};
