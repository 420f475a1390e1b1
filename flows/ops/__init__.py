"""Starting the servers of cpb: `serving.serve` runs an application in the current process, behind the guard.

listeners      the table of servers, with the headers of each
serving        `serve`: port, guard, log, end on a signal
guard          Host, Origin, password (HTTP Basic) and headers, before every request
password_file  a password in a file that only its owner can read
ui             `cpb ui`
"""
