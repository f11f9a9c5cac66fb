// Package leader routes a question to the replica that holds the shard.
//
// The gateway does not know how a service divides its work. A replica that does not hold the shard
// answers NOT_LEADER with the address of the holder, and the question follows at most twice. A
// replica that is unreachable, or cannot tell, is skipped. The replica that answered last is asked
// first the next time, so that one call is enough as a rule.
//
// A question that every replica can answer goes to the holder first, too, and then to the others.
//
// Only addresses of registered replicas of the service are called.
package leader
