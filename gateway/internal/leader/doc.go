// Package leader routes a question to the replica that leads a shard of a service.
//
// Which object belongs to which shard is known only to the service. The replica that answered last
// for the same key is asked first. A replica that does not lead answers NOT_LEADER with the address
// of the leader, which is asked next. Replicas that do not answer are skipped. Only addresses of
// registered replicas are called. A question that only reads is asked again for up to the patience
// of the Router while the leader changes, as in a rolling update.
//
// A question that writes is asked again only if it was certainly not carried out, or at the same
// replica, which knows the request by its id.
package leader
