//! The error numbers. The first three digits are the HTTP status. A number, once given, never changes its meaning.

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $description:literal;)*) => {
        /// A kind of refusal.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ErrorNumber {
            $(#[doc = $description] $(#[$doc])* $name,)*
        }

        impl ErrorNumber {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The number on the wire.
            pub const fn number(self) -> u32 {
                match self { $(Self::$name => $number,)* }
            }

            /// The words on the wire.
            pub const fn description(self) -> &'static str {
                match self { $(Self::$name => $description,)* }
            }
        }
    };
}

numbers! {
    SchemaMismatch = 400001, "Error validating the body with the target service's json-schema.";
    MalformedJson = 400002, "The request is not valid JSON.";
    InvalidRequest = 400003, "The request does not have the expected fields.";
    UnknownCallbackType = 400004, "Unknown callback type.";
    CallbackUrlNotAllowed = 400005, "The callback URL is not allowed.";
    InvalidParameter = 400006, "A query parameter is not valid.";
    InvalidHeader = 400007, "A header is not valid.";
    NestedTooDeep = 400008, "The JSON is nested too deeply.";
    InvalidBatch = 400009, "A batch must have between 1 and 1000 entries.";
    InvalidDeclaration = 400010, "The declaration is not valid.";
    PrerequisiteNotFound = 400011, "A task to wait for was not found.";
    ParentNotFound = 400012, "The parent task was not found.";
    NumberTooLong = 400013, "A number has too many digits for the target service's json-schema.";
    ValidationTimeout = 400014, "Validating the body with the target service's json-schema took too long.";
    Forbidden = 403001, "Forbidden.";
    AdminForbidden = 403002, "The admin API needs its own credentials.";
    RoleTooLow = 403003, "Your role does not allow this.";
    ServiceNotFound = 404001, "Service not found.";
    TaskNotFound = 404002, "Task not found.";
    RouteNotFound = 404003, "There is nothing at this address.";
    ClientNotFound = 404004, "Client not found.";
    AuthorizationNotFound = 404005, "Authorization not found.";
    CallbackNotFound = 404006, "Callback not found.";
    DeadLetterNotFound = 404007, "Dead letter not found.";
    ScheduleNotFound = 404008, "Schedule not found.";
    InstanceNotFound = 404010, "Instance not found.";
    BatchNotFound = 404009, "Batch not found.";
    MethodNotAllowed = 405001, "This address does not take that method.";
    RequestTimeout = 408001, "The request took too long to arrive.";
    IdempotencyKeyReused = 409001, "The Idempotency-Key was used with another request.";
    TaskEnded = 409002, "The task has already ended.";
    Conflict = 409003, "The change contradicts what is there.";
    BatchClosed = 409004, "The batch is closed.";
    BodyTooLarge = 413001, "The request is too large.";
    WrongContentType = 415001, "The content type must be application/json.";
    ServiceFull = 429001, "Too many service requests";
    ClientFull = 429002, "Too many service requests for the clientId.";
    TooManyRequests = 429003, "Too many requests at once for the clientId.";
    TooManyChecks = 429004, "Too many secrets are waiting to be checked. Try again later.";
    Internal = 500001, "Internal Server Error";
    StoreUnavailable = 503001, "The store is unavailable. Try again later.";
    Overloaded = 503002, "Too much is waiting to be stored. Try again later.";
    Stopping = 503003, "The server is stopping. Try another one.";
    BrokerUnavailable = 503004, "The broker is unavailable. Try again later.";
    BusUnavailable = 503005, "The event bus is unavailable. Try again later.";
    NotReady = 503006, "The server is not ready yet.";
    ValidationBusy = 503007, "Too much is waiting to be validated. Try again later.";
}

impl ErrorNumber {
    /// The HTTP status it goes with.
    pub const fn status(self) -> u16 {
        (self.number() / 1000) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_used_once_and_starts_with_its_status() {
        let mut numbers: Vec<u32> = ErrorNumber::ALL.iter().map(|n| n.number()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), ErrorNumber::ALL.len());
        assert!(ErrorNumber::ALL.iter().all(|n| (400..600).contains(&n.status())));
    }
}
