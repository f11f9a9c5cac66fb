// Package class describes the classes of holders: their heartbeat intervals, grace periods,
// namespaces, write policies, and which identities may beat for which holders.
//
// Promise: a class that Validate accepts has times that can be added without overflow, and a Lease
// object that outlives the grace period of its holder's session. A Catalog maps between class
// names, session.ClassIDs, namespaces and shards; replicas with the same configuration compute the
// same shard for the same holder. A Binding gives an identity one holder of a class at most, and
// never one holder to two identities.
package class
