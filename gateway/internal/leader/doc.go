// Package leader asks the one replica that owns an answer.
//
// Nobody has to know how a service divides its work: a replica that does not own the answer says NOT_LEADER and who does, and
// is believed twice. A replica that cannot be reached, or cannot tell, is passed over for the next one. Who answered is asked
// first the next time, so that as a rule one call is enough.
//
// What any replica can answer is asked of the owner first, too, and of the others where that one is unavailable.
//
// An address that a replica names is only called if a replica of the service is registered with it.
package leader
