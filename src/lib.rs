//! nvpoll
