// Package authn finds out on whose behalf a call is made.
//
// A caller proves its identity by a client certificate (its common name is the user, its
// organizations are the groups, as in kube-apiserver) or by a bearer token that kube-apiserver
// reviews. A call without either is of system:anonymous.
//
// A gateway calls on behalf of others: it names the original caller in the metadata of the call.
// Only a peer whose verified certificate has the group of gateways is believed; the same metadata
// of any other peer is removed before a handler can read it.
//
// Handlers read the caller by [FromContext]. They read neither certificates nor metadata.
package authn
