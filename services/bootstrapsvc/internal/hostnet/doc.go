// Package hostnet takes a snapshot of this machine's network interfaces and of the default routes that lead through them.
//
// Routes are read where Linux lists them. Elsewhere, or where they cannot be read, no interface counts as that of a default
// route; that only changes which of several addresses is preferred. The package decides nothing and keeps nothing.
package hostnet
