// Package watch lets many readers follow one costly question.
//
// However many watch, and with whatever intervals, there is one asker: it asks while somebody watches, one question at a
// time and never more often than [MinInterval] allows, and hands each answer to everybody whose turn it is. Turns lie on a
// common grid, at whole multiples of each interval, so all who watch with the same interval share every question.
//
// Every answer replaces the one before. A reader who is slow finds the newest when it comes back and never holds up the
// asker or the others.
//
// One goroutine, [Hub.Run], owns all state; questions run beside it. What is asked is not this package's business.
package watch
