// Package docs runs the commands of the documentation: every line after a prompt in a console block of
// README.md and docs/*.md, on real servers, in the order of the page.
//
// A page says in a comment what has to be there before its first command (Page.Needs). Nothing in a page is skipped:
// what cannot be run does not belong into a console block.
package docs
