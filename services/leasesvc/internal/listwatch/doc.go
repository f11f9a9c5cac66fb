// Package listwatch is the part that all list and watch RPCs of leasesvc share: page sizes, page
// tokens and the loop of a watch. It knows neither the API messages nor what they list.
package listwatch
