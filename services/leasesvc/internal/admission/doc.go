// Package admission paces those who come all at once, and bounds those who send too much.
//
// Promise: a Gate lets no more than its burst in at a time and no more than its rate in the long run; who has to wait is told
// when, one behind the other, and nobody is queued. A Meter finds whoever sends more than his rate for longer than a second, and
// tells when it has gone too far. Neither costs anything while nobody comes.
//
// Time is a parameter, counted from an origin of the caller's. All methods are safe for concurrent use. The package knows
// neither sessions nor the wire.
package admission
