// Command kern-sbx-mcp serves the Model Context Protocol on standard input and
// output: boxes as tools for agents. kern-sbx mcp starts it; it is a program of its
// own so that shell lines do not pay for what it links.
package main
