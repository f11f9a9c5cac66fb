// Package expect knows which of our own writes the cache has not shown yet, so
// that no Service is planned from a cache older than what was written for it,
// and so that the event of a write of our own is not taken for a change by
// somebody else.
//
// Promise: Begin lets a Service be planned only when every slice written or
// deleted for it has been shown by the cache; the event that shows the last one
// says that the Service may be tried again, so nobody waits for a clock. What the
// cache never shows, because somebody else relabelled or deleted the slice
// between two looks, expires: a Service can be held up, never for good.
// Expectations belong to the UID of a Service; a Service made again under the
// same name starts without any.
//
// Invariants: no I/O; time is a parameter. Not safe for concurrent use.
//
// What it does not do: it does not make writes safe. A plan from a cache that is
// older than it looks is refused by the resourceVersion each write carries.
package expect
