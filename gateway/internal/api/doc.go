// Package api handles the RPCs of the gateway. It serves the APIs of the services as they are, and
// asks their replicas.
//
// [Server.Register] has a table with one handler for each RPC. There are few kinds of handlers: a
// question for the leader of a key, for any replica, for the newest cache, or for all replicas, and
// a watch of a [fanin.Hub]. Requests and responses pass unchanged, except for what the gateway
// answers itself: merged items, page tokens, resume tokens, sources and missing parts. Handlers
// find these fields by their names, which are the same in all services.
package api
