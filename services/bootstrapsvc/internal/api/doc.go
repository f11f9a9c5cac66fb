// Package api serves trivet.bootstrap.v1.BootstrapService: the RPC handlers, the conversion to API
// messages and the one table from errors to statuses.
//
// Every handler returns errors and logs none. A replica that does not lead answers reads of the
// baseline and of the kube-apiservers, and rejects the remaining RPCs with NOT_LEADER.
package api
