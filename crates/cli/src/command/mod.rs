pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod policy;
pub(crate) mod sim;
