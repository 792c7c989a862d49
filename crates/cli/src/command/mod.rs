pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod policy;
pub(crate) mod reproduce;
pub(crate) mod rerun;
pub(crate) mod sim;
pub(crate) mod trace;
